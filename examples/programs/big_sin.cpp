#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// The sine of every element of a large array, and the gradient of the sum of them.
class BigSin {
 public:
  static constexpr const char* help = "the sine of a large array, and the gradient of its sum";

  static std::vector<Option> options() {
    return {integer_option("rows", 40, 1, 1 << 20, "elements along the axis x"),
            integer_option("columns", 40, 1, 1 << 20, "elements along the axis y")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Dims dims = {{"x", job.options.integer("rows")}, {"y", job.options.integer("columns")}};
    states.field("data", dims, counting());
  }

  void iterate(const ModelJob&, Function& f) const {
    const Value data = f.state("data");
    const Value result = sin(data);
    f.write("data", result);
    f.output("gradient", gradient(sum(result), data));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(BigSin, "big_sin", "1.0")
