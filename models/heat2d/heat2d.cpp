#include "../heat/heat.h"

namespace {

using namespace shardrun::workload;

/// The heat equation in two dimensions, explicit in time: u[i, j] ← 0.5 u[i, j] + 0.125 u[i−1, j] + 0.125 u[i+1, j] +
/// 0.125 u[i, j−1] + 0.125 u[i, j+1], added from left to right.
class Heat2d {
 public:
  static constexpr const char* help = "heat equation on a rectangle, iterated";

  static std::vector<Option> options() {
    constexpr std::int64_t most = 1048576;
    return heat_options(
        {also_called(required(integer_option("rows", 1, 1, most, "points along the axis x")), "nx height n_rows"),
         also_called(required(integer_option("columns", 1, 1, most, "points along the axis y")),
                     "ny width cols n_cols")});
  }

  void declare(const ModelJob& job, States& states) const {
    declare_temperature(job, states, {{"x", job.options.integer("rows")}, {"y", job.options.integer("columns")}});
  }

  void iterate(const ModelJob& job, Function& f) const { iterate_temperature(job, f, 0.5, 0.125); }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Heat2d, "heat2d", "1.0")
