#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// Each element moves along the gradient of its sine: x ← x + rate · d(Σ sin x)/dx.
class Sin {
 public:
  static constexpr const char* help = "elements that climb their own sine, iterated";

  static std::vector<Option> options() {
    return {
        also_called(required(integer_option("cells", 1, 1, std::int64_t{1} << 40,
                                            "elements of x and of y = sin x; their axis is x")),
                    "n nx points num_cells elements size"),
        also_called(number_option("rate", 0.1, 0, 0, "how much of its gradient is added to x in each step"),
                    "lr learning_rate step_size"),
        number_option("spread", 1, 0, 1e30, "standard deviation of the first x"),
    };
  }

  void declare(const ModelJob& job, States& states) const {
    const Dims dims = {{"x", job.options.integer("cells")}};
    states.field("x", dims, normal(job.options.number("spread")));
    states.field("y", dims);
  }

  void iterate(const ModelJob& job, Function& f) const {
    const Value x = f.state("x");
    const Value y = sin(x, "y");
    f.write("x", (x + job.options.number("rate") * gradient(sum(y), x)).named("next"));
    f.write("y", y);
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Sin, "sin", "1.0")
