#include <shardrun/sdk/model.hpp>

namespace {

using namespace shardrun::sdk;

/// Conway's Game of Life on a torus (Gardner 1970): a cell lives on with two or three neighbours, and is born with
/// three.
class Life {
 public:
  static constexpr const char* help = "Conway's Game of Life on a torus";

  static std::vector<Option> options() {
    return {integer_option("rows", 64, 1, 1 << 20, "cells along the axis x"),
            integer_option("columns", 64, 1, 1 << 20, "cells along the axis y"),
            number_option("alive", 0.3, 0, 1, "the share of cells that live at first")};
  }

  void declare(const ModelJob& job, States& states) const {
    states.field("cells", {{"x", job.options.integer("rows")}, {"y", job.options.integer("columns")}},
                 chance(job.options.number("alive")));
  }

  void iterate(const ModelJob&, Function& f) const {
    const Value cells = f.state("cells");
    const Value rows = cells + shift(cells, 0, -1) + shift(cells, 0, 1);
    const Value neighbours = rows + shift(rows, 1, -1) + shift(rows, 1, 1) - cells;
    const Value next = where(neighbours == 3, 1, where(neighbours == 2, cells, 0));
    f.write("cells", next);
    f.output("alive", sum(next));
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Life, "life", "1.0")
