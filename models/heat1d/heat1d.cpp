#include "../heat/heat.h"

namespace {

using namespace shardrun::workload;

/// The heat equation in one dimension, explicit in time: u[i] ← 0.5 u[i] + 0.25 u[i−1] + 0.25 u[i+1].
class Heat1d {
 public:
  static constexpr const char* help = "heat equation on a line, iterated";

  static std::vector<Option> options() {
    return heat_options({also_called(
        required(integer_option("cells", 1, 1, std::int64_t{1} << 40, "points of the line; its axis is x")),
        "n nx points num_cells grid_points n_points size")});
  }

  void declare(const ModelJob& job, States& states) const {
    declare_temperature(job, states, {{"x", job.options.integer("cells")}});
  }

  void iterate(const ModelJob& job, Function& f) const { iterate_temperature(job, f, 0.5, 0.25); }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Heat1d, "heat1d", "1.0")
