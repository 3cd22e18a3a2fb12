#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// The wave equation on a rectangle, explicit in time: each point moves as far as in the previous step, and is pulled
/// towards the mean of its four neighbours.
class Wave {
 public:
  static constexpr const char* help = "a wave on a rectangle, iterated";

  static std::vector<Option> options() {
    return {integer_option("rows", 64, 1, 1 << 20, "points along the axis x"),
            integer_option("columns", 64, 1, 1 << 20, "points along the axis y"),
            number_option("speed", 0.5, 0, 0.7, "squared, in points a step")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Dims dims = {{"x", job.options.integer("rows")}, {"y", job.options.integer("columns")}};
    states.field("u", dims, bump(0.1));
    states.field("before", dims, bump(0.1));
  }

  void iterate(const ModelJob& job, Function& f) const {
    const Value u = f.state("u");
    const Value before = f.state("before");
    const Value neighbours = shift(u, 0, -1) + shift(u, 0, 1) + shift(u, 1, -1) + shift(u, 1, 1);
    f.write("u", 2 * u - before + job.options.number("speed") * (neighbours - 4 * u));
    f.write("before", u);
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Wave, "wave", "1.0")
