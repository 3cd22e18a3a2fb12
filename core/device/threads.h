#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace shardrun::device {

/// The threads of one rank: the calling thread and count − 1 workers, which sleep between runs. Only one thread at a
/// time is allowed to call `run` or `split`.
class Threads {
 public:
  explicit Threads(int count);  ///< throws Error{io} if the system does not start so many
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  [[nodiscard]] int count() const noexcept { return count_; }

  /// Calls body(part) once for each part in [0, parts), at most count() at a time, and returns when all are done. Part
  /// 0 runs on the calling thread unless parts are rotated. With one part or one thread this is a plain call. Bodies
  /// must not throw.
  template <typename Body>
  void run(int parts, const Body& body) {
    run_parts(
        parts, [](const void* self, int part) { (*static_cast<const Body*>(self))(part); }, &body);
  }

  /// From now on, thread (p + by) % count() runs part p, so that work can be repeated on other cores. 0 ends this.
  void rotate(int by) noexcept { rotated_ = by % count_; }

  /// Splits [0, size) into at most count() contiguous ranges and calls body(begin, end) for each non-empty one. The
  /// length of each range except the last is a multiple of `grain`. The split depends only on size, grain and count.
  template <typename Body>
  void split(std::int64_t size, std::int64_t grain, const Body& body) {
    const std::int64_t grains = (size + grain - 1) / grain;
    const std::int64_t parts = grains < count_ ? grains : count_;
    if (parts <= 1) {
      if (size > 0) {
        body(std::int64_t{0}, size);
      }
      return;
    }
    run(static_cast<int>(parts), [&](int part) {
      const std::int64_t begin = grains * part / parts * grain;
      const std::int64_t end = grains * (part + 1) / parts * grain;
      body(begin, end < size ? end : size);
    });
  }

 private:
  struct Pool;
  void run_parts(int parts, void (*body)(const void*, int), const void* self);

  int count_;
  int rotated_ = 0;
  std::unique_ptr<Pool> pool_;
};

}  // namespace shardrun::device
