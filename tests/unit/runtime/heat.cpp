// Iterated jobs over ranks, compared bit for bit with plain loops over one array.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "core/runtime/interpreter.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr float wall = 0.375F;

/// Rows of columns, and what is past their ends.
struct Grid {
  std::size_t rows = 1;
  std::size_t columns = 1;
  bool periodic = true;

  [[nodiscard]] float at(const std::vector<float>& u, std::ptrdiff_t i, std::ptrdiff_t j) const {
    const auto m = static_cast<std::ptrdiff_t>(rows);
    const auto n = static_cast<std::ptrdiff_t>(columns);
    if (!periodic && (i < 0 || i >= m || j < 0 || j >= n)) {
      return wall;
    }
    return u[static_cast<std::size_t>((i + m) % m * n + (j + n) % n)];
  }
};

double square_of(std::size_t i, std::size_t size, double width) {
  const double x = ((static_cast<double>(i) + 0.5) / static_cast<double>(size) - 0.5) / width;
  return x * x;
}

std::vector<float> bump(const Grid& grid, bool line) {
  std::vector<float> u;
  for (std::size_t i = 0; i < grid.rows; ++i) {
    for (std::size_t j = 0; j < grid.columns; ++j) {
      const double across = line ? 0 : square_of(j, grid.columns, 0.1);
      u.push_back(static_cast<float>(std::exp(-0.5 * (across + square_of(i, grid.rows, 0.1)))));
    }
  }
  return u;
}

std::vector<float> line_after(int steps, const Grid& grid) {
  std::vector<float> u = bump(grid, true);
  std::vector<float> next(u.size());
  for (int step = 0; step < steps; ++step) {
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(u.size()); ++i) {
      next[static_cast<std::size_t>(i)] =
          0.5F * grid.at(u, i, 0) + 0.25F * grid.at(u, i - 1, 0) + 0.25F * grid.at(u, i + 1, 0);
    }
    u.swap(next);
  }
  return u;
}

std::vector<float> grid_after(int steps, const Grid& grid) {
  std::vector<float> u = bump(grid, false);
  std::vector<float> next(u.size());
  for (int step = 0; step < steps; ++step) {
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(grid.rows); ++i) {
      for (std::ptrdiff_t j = 0; j < static_cast<std::ptrdiff_t>(grid.columns); ++j) {
        next[static_cast<std::size_t>(i) * grid.columns + static_cast<std::size_t>(j)] =
            0.5F * grid.at(u, i, j) + 0.125F * grid.at(u, i - 1, j) + 0.125F * grid.at(u, i + 1, j) +
            0.125F * grid.at(u, i, j - 1) + 0.125F * grid.at(u, i, j + 1);
      }
    }
    u.swap(next);
  }
  return u;
}

graph::Graph heat(const Grid& grid, bool line) {
  const std::string rows = std::to_string(grid.rows);
  const std::string columns = std::to_string(grid.columns);
  std::vector<job::WrittenSetting> options = {{line ? "cells" : "rows", rows}};
  if (!line) {
    options.emplace_back("columns", columns);
  }
  options.emplace_back("boundary", grid.periodic ? "periodic" : "fixed");
  options.emplace_back("wall", grid.periodic ? "0" : "0.375");
  const workload::Model& model = find_model(line ? "heat1d" : "heat2d");
  return workload::build_iteration(model, {.options = job::make_options(model.options, options), .data = {}});
}

/// All ranks' parts of a state after some iterations.
class Iterated {
 public:
  Iterated(const graph::Graph& graph, const plan::Plan& plan, int steps,
           std::optional<runtime::Fault> fault = std::nullopt)
      : graph_(graph), ranks_(graph, partition::split(graph, plan), device::Device::find("cpu"), 1, fault) {
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      for (const graph::StateId id : graph.states.ids()) {
        runtime::initialize(ranks_.rank(rank).state(id), ranks_.rank(rank).part(id), graph.states[id], 7,
                            ranks_.rank(rank).threads());
      }
    }
    for (int step = 0; step < steps; ++step) {
      ranks_.run("iterate", 0, true, {.step = step});
    }
  }

  [[nodiscard]] std::vector<float> state(const char* name) {
    const graph::StateId id = graph_.find_state(name);
    Tensor whole = zeros(graph_.states[id].type);
    std::vector<int> filled(whole.values.size(), 0);
    for (std::size_t rank = 0; rank < ranks_.ranks(); ++rank) {
      REQUIRE(gather_part(ranks_.rank(rank).state(id), whole, filled));
    }
    REQUIRE(std::count(filled.begin(), filled.end(), 0) == 0);
    return {whole.values.begin(), whole.values.end()};
  }

  [[nodiscard]] runtime::Interpreter& ranks() { return ranks_; }

 private:
  const graph::Graph& graph_;
  runtime::Interpreter ranks_;
};

plan::Plan rows_over(std::uint32_t ranks) { return plan_of({{"a", ranks}}, {{"x", {"a"}}}); }

struct NamedPlan {
  std::string name;
  plan::Plan plan;
};

std::vector<NamedPlan> grid_plans() {
  std::vector<NamedPlan> plans;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    plans.push_back({fmt::format("rows over {}", ranks), rows_over(ranks)});
    plans.push_back({fmt::format("columns over {}", ranks), plan_of({{"a", ranks}}, {{"y", {"a"}}})});
  }
  plans.push_back({"2 x 2", plan_of({{"a", 2}, {"b", 2}}, {{"x", {"a"}}, {"y", {"b"}}})});
  plans.push_back({"2 x 2, the other way", plan_of({{"a", 2}, {"b", 2}}, {{"x", {"b"}}, {"y", {"a"}}})});
  plans.push_back({"3 x 2", plan_of({{"a", 3}, {"b", 2}}, {{"x", {"a"}}, {"y", {"b"}}})});
  plans.push_back({"rows over two axes", plan_of({{"a", 2}, {"b", 2}}, {{"x", {"a", "b"}}})});
  return plans;
}

}  // namespace

TEST_CASE("heat on a line is the same over any number of ranks", "[interpreter]") {
  for (const std::size_t cells : {std::size_t{3}, std::size_t{10}, std::size_t{101}}) {
    for (const bool periodic : {true, false}) {
      const Grid grid{cells, 1, periodic};
      const graph::Graph graph = heat(grid, true);
      const std::vector<float> expected = line_after(1000, grid);
      REQUIRE(expected != bump(grid, true));
      for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 5U}) {  // also more ranks than cells
        INFO(cells << " cells over " << ranks << (periodic ? ", periodic" : ", fixed"));
        CHECK(Iterated(graph, rows_over(ranks), 1000).state("temperature") == expected);
      }
    }
  }
}

TEST_CASE("heat on a rectangle is the same over any mesh", "[interpreter]") {
  for (const Grid& grid : {Grid{8, 8, true}, Grid{7, 5, true}, Grid{7, 5, false}, Grid{2, 9, false}}) {
    const graph::Graph graph = heat(grid, false);
    const std::vector<float> expected = grid_after(1000, grid);
    REQUIRE(expected != bump(grid, false));
    for (const NamedPlan& plan : grid_plans()) {
      INFO(grid.rows << " x " << grid.columns << ", " << plan.name << (grid.periodic ? ", periodic" : ", fixed"));
      CHECK(Iterated(graph, plan.plan, 1000).state("temperature") == expected);
    }
  }
}

TEST_CASE("a step sends exactly its halos", "[interpreter]") {
  const auto sent = [](const graph::Graph& graph, const plan::Plan& plan) {
    Iterated run(graph, plan, 1);
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < run.ranks().ranks(); ++rank) {
      partition::SentBytes planned;
      partition::add_sent_bytes(planned, run.ranks().programs(rank), run.ranks().programs(rank).programs[0]);
      CHECK(run.ranks().rank(rank).sent() == planned);
      std::string& text = texts.emplace_back();
      for (const auto& [axis, collectives] : planned) {
        for (const auto& [collective, bytes] : collectives) {
          text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", axis, collective, bytes);
        }
      }
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  const graph::Graph line = heat({100000, 1, true}, true);
  const graph::Graph walled = heat({100000, 1, false}, true);
  // One cell to each side.
  CHECK(sent(line, rows_over(4)) == Texts(4, "a halo 8"));
  CHECK(sent(line, rows_over(2)) == Texts(2, "a halo 8"));
  CHECK(sent(walled, rows_over(3)) == Texts{"a halo 4", "a halo 8", "a halo 4"});
  // A row of 96 cells or a column of 128 to each side; over 2 x 2 half of each.
  const graph::Graph grid = heat({128, 96, true}, false);
  CHECK(sent(grid, rows_over(4)) == Texts(4, "a halo 768"));
  CHECK(sent(grid, plan_of({{"a", 4}}, {{"y", {"a"}}})) == Texts(4, "a halo 1024"));
  CHECK(sent(grid, plan_of({{"a", 2}, {"b", 2}}, {{"x", {"a"}}, {"y", {"b"}}})) == Texts(4, "a halo 384, b halo 512"));
}

TEST_CASE("every fault in a halo is seen in the temperatures", "[interpreter]") {
  const Grid grid{7, 5, true};
  const graph::Graph graph = heat(grid, false);
  const std::vector<float> expected = grid_after(3, grid);
  const plan::Plan plan = plan_of({{"a", 3}, {"b", 2}}, {{"x", {"a"}}, {"y", {"b"}}});
  const std::size_t transfers = Iterated(graph, plan, 0).ranks().transfers();
  CHECK(transfers == 4);
  for (std::size_t transfer = 0; transfer < transfers; ++transfer) {
    for (const auto kind : {runtime::Fault::Kind::omit, runtime::Fault::Kind::scale}) {
      INFO("transfer " << transfer << ", fault " << static_cast<int>(kind));
      CHECK(Iterated(graph, plan, 3, runtime::Fault{kind, transfer}).state("temperature") != expected);
    }
  }
}

TEST_CASE("model sin sends nothing, and has the same values over any number of ranks", "[interpreter]") {
  const workload::Model& model = find_model("sin");
  const graph::Graph graph =
      workload::build_iteration(model, {.options = job::make_options(model.options, {{"cells", "101"}}), .data = {}});
  const std::vector<float> first = Iterated(graph, rows_over(1), 0).state("x");
  Iterated once(graph, rows_over(1), 1);
  const std::vector<float> x = once.state("x");
  const std::vector<float> y = once.state("y");
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(x[i] == Approx(first[i] + 0.1 * std::cos(static_cast<double>(first[i]))).margin(1e-6));
    CHECK(y[i] == Approx(std::sin(static_cast<double>(first[i]))).margin(1e-6));
  }
  Iterated alone(graph, rows_over(1), 200);
  for (const std::uint32_t ranks : {2U, 3U, 4U}) {
    Iterated split(graph, rows_over(ranks), 200);
    CHECK(split.state("x") == alone.state("x"));
    CHECK(split.state("y") == alone.state("y"));
    CHECK(split.ranks().transfers() == 0);
  }
  // Where the sine is greatest it stays.
  for (const float value : alone.state("y")) {
    CHECK(value == Approx(1).margin(1e-5));
  }
}
