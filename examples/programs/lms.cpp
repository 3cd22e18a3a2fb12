#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// A linear filter that adapts to its data (least mean squares, Widrow and Hoff 1960): each step moves the weights
/// along the mean of x (y - x w) over the samples of a batch. It has its own update, and no loss for an optimizer.
class Lms {
 public:
  static constexpr const char* help = "a linear filter that adapts by least mean squares, iterated over arrays";
  static constexpr std::uint32_t data = SR_DATA_ARRAYS;

  static std::vector<Option> options() { return {number_option("rate", 0.05, 0, 1, "how far a step moves")}; }

  void declare(const ModelJob& job, States& states) const {
    states.field("weights", {{"features", job.features}, {"outputs", job.outputs}});
  }

  void iterate(const ModelJob& job, Function& f) const {
    const Dim batch{"batch", f.rows()};
    const Value x = f.input("inputs", Element::f32, {batch, {"features", job.features}});
    const Value y = f.input("targets", Element::f32, {batch, {"outputs", job.outputs}});
    const Value weights = f.state("weights");
    const Value error = y - einsum("bf,fo->bo", x, weights);
    const double share = 1.0 / static_cast<double>(f.rows());
    f.write("weights", weights + job.options.number("rate") * share * einsum("bf,bo->fo", x, error));
    f.output("mean_square", share * sum(error * error, {0}));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Lms, "lms", "1.0")
