#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// A chain of springs that hangs from a hook finds its rest by training. The loss is its energy, so it takes no data:
/// every sample is the same chain.
class Spring {
 public:
  static constexpr const char* help = "a hanging chain of springs that finds its rest by training";

  static std::vector<Option> options() {
    return {integer_option("links", 4, 1, 1 << 20, "springs, each with a weight"),
            number_option("weight", 0.045, 0, 0, "of each")};
  }

  void declare(const ModelJob& job, States& states) const {
    states.parameter("height", {{"x", job.options.integer("links")}}, constant(0));
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value height = f.state("height");
    const Boundary hook{.periodic = false, .value = 0};
    const Value stretch = height - shift(height, 0, -1, hook);
    const Value energy = job.options.number("weight") * sum(height) + 0.5 * sum(stretch * stretch);
    return energy + 0 * iota(f, {"batch", f.rows()});
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Spring, "spring", "1.0")
