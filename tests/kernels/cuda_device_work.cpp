#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/device/library.h"
#include "tests/kernels/cuda_device.h"

namespace shardrun::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Runs cases in memory of the device. A GPU has only one way to run a kernel, so every case is run twice.
class DeviceRunner final : public KernelRunner {
 public:
  DeviceRunner(const device::Device& device, bool separate) : device_(device), separate_(separate) { open(); }

  [[nodiscard]] bool has_convolutions_of_library() const override {
    return device_.facts().bf16_products.find("convolutions: cuDNN") != std::string::npos;
  }
  [[nodiscard]] std::size_t turns() const override { return 2; }
  [[nodiscard]] std::vector<Tensor> run(const Prepared& prepared, const Manner& manner, std::size_t) override {
    ++runs;
    Manner on_device = manner;
    on_device.room = &*room_;
    return test::run(device_, prepared, on_device);
  }
  /// Throws if the device does nothing any more.
  void open() { room_.emplace(device_, separate_); }

  std::int64_t runs = 0;

 private:
  const device::Device& device_;
  bool separate_;
  std::optional<conformance::DeviceRoom> room_;
};

/// Messages to the process that reports.
class Sender {
 public:
  explicit Sender(int descriptor) : descriptor_(descriptor) {}

  void send(const std::vector<std::string>& fields) const {
    std::string line;
    for (std::string field : fields) {
      std::ranges::replace_if(
          field, [](char c) { return c == '\t' || c == '\n'; }, ' ');
      line += (line.empty() ? "" : "\t") + field;
    }
    line += '\n';
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t wrote = write(descriptor_, line.data() + at, line.size() - at);
      if (wrote <= 0) {
        _exit(1);  // the process that reports is gone
      }
      at += static_cast<std::size_t>(wrote);
    }
  }

 private:
  int descriptor_;
};

enum class Checked { whole, out_of_time, device_lost };

Checked check_op(const Options& options, const std::string& op, DeviceRunner& runner, const Sender& sender,
                 Clock::time_point limit) {
  const Clock::time_point begin = Clock::now();
  std::int64_t cases = 0;
  runner.runs = 0;
  for (const TypedCase& typed : cases_to_run(options, op)) {
    if (Clock::now() >= limit) {
      return Checked::out_of_time;
    }
    ++cases;
    const Prepared prepared = prepare_as(typed.test, typed.typing);
    for (const KernelCheck& check : cuda_checks()) {
      sender.send({"at", op, check.name, to_string(typed)});
      std::string wrong;
      bool lost = false;
      try {
        wrong = check.check(typed, prepared, runner);
      } catch (const Error& error) {
        wrong = error.message();
        try {
          runner.open();
        } catch (const Error&) {
          lost = true;
        }
      }
      if (!wrong.empty()) {
        sender.send({"wrong", wrong});
      }
      if (lost) {
        return Checked::device_lost;
      }
    }
    const std::chrono::duration<double> taken = Clock::now() - begin;
    sender.send({"so far", op, std::to_string(cases), std::to_string(runner.runs), std::to_string(taken.count())});
  }
  sender.send({"done", op});
  return Checked::whole;
}

}  // namespace

std::vector<TypedCase> cases_to_run(const Options& options, const std::string& op) {
  std::vector<TypedCase> cases = cuda_cases(op);
  std::ranges::move(large_cuda_cases(op), std::back_inserter(cases));
  if (options.largest > 0) {
    std::erase_if(cases, [&](const TypedCase& typed) { return largest_operand(typed.test) > options.largest; });
  }
  if (options.cases == 0 || cases.size() <= options.cases) {
    return cases;
  }
  // Takes one case of each of equal ranges, at a place that differs from range to range, because the types of
  // cases alternate.
  std::vector<TypedCase> chosen;
  for (std::size_t i = 0; i < options.cases; ++i) {
    const std::size_t begin = i * cases.size() / options.cases;
    const std::size_t length = (i + 1) * cases.size() / options.cases - begin;
    chosen.push_back(std::move(cases[begin + 7919 * i % length]));
  }
  return chosen;
}

void work(const Options& options) {
  const Sender sender(options.report_to);
  const Clock::time_point limit =
      options.seconds > 0
          ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))
          : Clock::time_point::max();
  std::optional<DeviceRunner> runner;
  try {
    const device::Device& device = options.library.empty() ? device::Device::find(options.device)
                                                           : device::load_device(options.device, {options.library});
    if (device.has_units()) {
      const std::vector<device::Unit> units = device.units();
      if (options.unit >= units.size()) {
        throw Error(ErrorCode::usage,
                    fmt::format("--unit {}: device {} has {} units", options.unit, device.name(), units.size()));
      }
      device.use_unit(options.unit);
      sender.send({"unit", units[options.unit].name, units[options.unit].architecture});
    }
    runner.emplace(device, options.separate);
  } catch (const Error& error) {
    sender.send({"unusable", error.message()});
    return;
  }
  for (const std::string& op : options.ops) {
    const Checked checked = check_op(options, op, *runner, sender, limit);
    if (checked == Checked::device_lost) {
      _exit(0);  // no destructor waits for a device that is gone
    }
    if (checked == Checked::out_of_time) {
      return;
    }
  }
}

}  // namespace shardrun::test
