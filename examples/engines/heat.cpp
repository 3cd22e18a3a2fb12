// The heat equation on a line, written like an MPI program: each rank holds a piece of the line and exchanges the
// points at its ends with its neighbours.

#include <shardrun/sdk/engine.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace shardrun::sdk;

namespace {

class Heat final : public IteratedEngine {
 public:
  static constexpr const char* help = "heat equation on a line, with halos by hand";
  static constexpr std::uint32_t flags = SR_ENGINE_MESSAGES;
  static std::vector<Option> options() {
    return {required(integer_option("cells", 1, 1, 1 << 30, "points of the line")),
            number_option("bump", 0.1, 1e-6, 1, "width of the first temperature's bump, as a share of the line")};
  }

  explicit Heat(EngineSetup& setup)
      : IteratedEngine(setup),
        cells_(option_values().integer("cells")),
        u_(sharded_state("temperature", {cells_}, 0)),
        holders_(static_cast<int>(std::min<std::int64_t>(num_devices(), cells_))) {}

  /// exp(−½ ((x − ½) / width)²) at the points' centres.
  void start() {
    const double width = option_values().number("bump");
    const Part own = part_of(cells_, num_devices(), device_id());
    for (std::int64_t i = 0; i < own.size; ++i) {
      const double x = (static_cast<double>(own.begin + i) + 0.5) / static_cast<double>(cells_);
      const double distance = (x - 0.5) / width;
      u_.data()[i] = static_cast<float>(std::exp(-0.5 * distance * distance));
    }
  }

  void step(std::int64_t) {
    if (device_id() >= holders_) {
      return;  // there are fewer points than ranks
    }
    Array left({1});
    Array right({1});
    exchange(left, right);
    // u[i] ← 0.5 u[i] + 0.25 u[i − 1] + 0.25 u[i + 1]; what lies beyond the line is 0.
    float before = left.data()[0];
    float* const u = u_.data();
    const std::int64_t n = u_.extent(0);
    for (std::int64_t i = 0; i < n; ++i) {
      const float here = u[i];
      const float after = i + 1 < n ? u[i + 1] : right.data()[0];
      u[i] = 0.5F * here + 0.25F * before + 0.25F * after;
      before = here;
    }
  }

 private:
  void exchange(Array& left, Array& right) {
    const std::int64_t n = u_.extent(0);
    const Array first = u_.slice(0, {0, 1});
    const Array last = u_.slice(0, {n - 1, 1});
    std::vector<Future> messages;
    if (device_id() > 0) {
      messages.push_back(send_async(first, device_id() - 1));
    }
    if (device_id() + 1 < holders_) {
      messages.push_back(send_async(last, device_id() + 1));
      right = receive(device_id() + 1);
    }
    if (device_id() > 0) {
      left = receive(device_id() - 1);
    }
    for (Future& message : messages) {
      message.wait();
    }
  }

  std::int64_t cells_;
  Array& u_;
  int holders_;  ///< ranks with points, the first ones
};

}  // namespace

SHARDRUN_EXPORT_ENGINE(Heat, "heat", "1.0")
