#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// The heat equation on a line: x[i] <- 0.5 x[i] + 0.25 x[i-1] + 0.25 x[i+1]. The two ends stay as they are.
class Heat {
 public:
  static constexpr const char* help = "the heat equation on a line with two fixed ends";

  static std::vector<Option> options() {
    return {integer_option("points", 100, 1, (1 << 24) - 1, "points between the ends")};
  }

  void declare(const ModelJob& job, States& states) const {
    states.field("data", {{"x", job.options.integer("points") + 2}}, uniform(1));
  }

  void iterate(const ModelJob&, Function& f) const {
    const Value data = f.state("data");
    const Dim line = data.dims()[0];
    const Value next = 0.5 * data + 0.25 * shift(data, 0, -1) + 0.25 * shift(data, 0, 1);
    const Value index = iota(f, line);
    const Value inside = (index > 0) * (index < static_cast<double>(line.size - 1));
    f.write("data", where(inside, next, data));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Heat, "heat102", "1.0")
