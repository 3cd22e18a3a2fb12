// [train] remat: what a job makes of it, and the graph that it is compared with.

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The number of nodes of one op that training computes again.
std::int64_t repeated(const graph::Graph& graph, std::string_view op) {
  const graph::Function& micro = *graph.find("micro", 7);
  return std::count_if(micro.nodes.begin(), micro.nodes.end(), [&](const graph::Node& node) {
    return node.name.starts_with("recompute/") && node.op->name == op;
  });
}

}  // namespace

TEST_CASE("a job says what is computed again, and the default is nothing", "[compile]") {
  const TemporaryFolder folder;
  const auto compiled = [&](const std::vector<std::string>& overrides) {
    return compile_ready(text_job_in(folder, overrides)).graph;
  };
  CHECK(graph::to_string(compiled({})) == graph::to_string(compiled({"train.remat=none"})));
  CHECK(repeated(compiled({}), "gelu") == 0);
  CHECK(repeated(compiled({"train.remat=selective"}), "gelu") == 2);
  CHECK(repeated(compiled({"train.remat=selective"}), "attention") == 0);
  CHECK(repeated(compiled({"train.remat=layer"}), "attention") == 2);
}

TEST_CASE("the reference of a job with remat is the same graph without it", "[compile]") {
  const TemporaryFolder folder;
  const compile::Compiled plain = compile_ready(text_job_in(folder));
  const job::Job job = text_job_in(folder, {"train.remat=layer"});
  const compile::Compiled compiled = compile_ready(job);
  CHECK(graph::to_string(compile::graph_without_remat(job, compiled)) == graph::to_string(plain.graph));
}
