#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// The sum of the four neighbours of each point, less four times the point. Outside of the plane there are zeros.
struct Laplacian {
  static constexpr const char* name = "laplacian";
  static constexpr const char* help = "u[y-1, x] + u[y+1, x] + u[y, x-1] + u[y, x+1] - 4 u[y, x]";
  static constexpr const char* rule = "y[-1..1] x[-1..1] -> y x";

  template <class Real>
  static void kernel(const KernelCall<Real>& call) {
    const OpTensor u = call.operand(0);
    const OpTensor result = call.result();
    const std::int64_t columns = result.size(1);
    // `u` also has the edges of the neighbours' shards.
    const std::int64_t top = result.origin(0) - u.origin(0);
    const std::int64_t left = result.origin(1) - u.origin(1);
    const auto at = [&, from = call.reals(0)](std::int64_t y, std::int64_t x) {
      return y < 0 || y >= u.size(0) || x < 0 || x >= u.size(1) ? Real(0) : from[y * u.size(1) + x];
    };
    call.split(result.size(0), 16, [&, to = call.results()](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
          const std::int64_t y = i + top;
          const std::int64_t x = j + left;
          to[i * columns + j] = at(y - 1, x) + at(y + 1, x) + at(y, x - 1) + at(y, x + 1) - 4 * at(y, x);
        }
      }
    });
  }

  /// The op is a symmetric matrix, so its gradient is the op itself.
  static Value gradient(Function& f, const GradientRequest& request) {
    return f.call("laplacian", {request.result_gradients[0]});
  }
};

/// Heat that spreads on a plane and is lost at its border.
class Diffusion {
 public:
  static constexpr const char* help = "heat on a plane, with an op of its own";

  static std::vector<Option> options() {
    return {integer_option("rows", 64, 1, 1 << 20, "points of a column"),
            integer_option("columns", 48, 1, 1 << 20, "points of a row"),
            number_option("rate", 0.2, 0, 0.25, "of the spread in a step")};
  }
  static auto ops() { return own_ops<Laplacian>(); }

  void declare(const ModelJob& job, States& states) const {
    states.field("u", {{"y", job.options.integer("rows")}, {"x", job.options.integer("columns")}}, uniform(1));
  }

  void iterate(const ModelJob& job, Function& f) const {
    const Value u = f.state("u");
    f.write("u", u + job.options.number("rate") * f.call("laplacian", {u}));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Diffusion, "diffusion", "1.0")
