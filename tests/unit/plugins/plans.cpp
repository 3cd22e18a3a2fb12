#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plan;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

std::string plan_error(const Strategy& strategy, const StrategyRequest& request) {
  return error_of([&] { static_cast<void>(strategy.make_plan(request)); });
}

std::string fault(const std::string& name) {
  static const Strategy illegal = Strategy::open(fixtures, "illegal");
  StrategyRequest request = small_request(4);
  request.options.set("fault", name);
  return plan_error(illegal, request);
}

std::string thrown(const std::string& what) {
  static const Strategy throws = Strategy::open(fixtures, "throws");
  StrategyRequest request = small_request(4);
  request.options.set("what", what);
  return plan_error(throws, request);
}

}  // namespace

TEST_CASE("a strategy in C writes a plan", "[plugins]") {
  const Strategy rows = Strategy::open(fixtures, "rows");

  const plan::Plan plan = rows.make_plan(small_request(4));

  CHECK(plan.mesh == std::vector<MeshAxis>{{"data", 4}});
  CHECK(plan.axes == std::vector<AxisPlacement>{{"batch", {"data"}}});
  CHECK(plan.tensors == std::vector<TensorPlacement>{{"w", TensorRole::optimizer, {{"data"}, {}}},
                                                     {"b", TensorRole::optimizer, {{"data"}}},
                                                     {"square", TensorRole::optimizer, {{"data"}, {}}}});
  CHECK(plan.cut_points.empty());
  CHECK(plan.bucket_bytes == 0);
  CHECK(rows.make_plan(small_request(4)) == plan);
}

TEST_CASE("a strategy reads all of the request", "[plugins]") {
  std::vector<std::string> lines;
  const LogSink keep = [&](LogLevel level, std::string_view plugin, std::string_view text) {
    lines.push_back(std::string(plugin) + (level == LogLevel::warning ? "! " : ": ") + std::string(text));
  };
  const Strategy echo = Strategy::open(fixtures, "echo", keep);
  StrategyRequest request = small_request(2);
  request.job.mesh = {{"data", 2}, {"model", 1}};
  request.options = {{"depth", std::int64_t{5}}, {"note", "über"}};

  static_cast<void>(echo.make_plan(request));

  CHECK(lines == std::vector<std::string>{
                     "echo: job 2 data=2 model=1 quiet=0 depth=5 share=0.25 mode=b note=über order=first[-]",
                     "echo: tensor w kind 1 [8,12,] [embed,mlp,] bytes 384 layer 0 tied 1",
                     "echo: tensor b kind 1 [12,] [,] bytes 48 layer -1 tied 0",
                     "echo: tensor square kind 1 [8,8,] [embed,embed,] bytes 256 layer -1 tied 1",
                     "echo: tensor field kind 2 [100,4,] [x,y,] bytes 1600 layer -1 tied 0",
                     "echo: axis batch 16",
                     "echo: axis seq 32",
                     "echo: axis embed 8",
                     "echo: axis mlp 12",
                     "echo: axis heads 7",
                     "echo: axis x 100",
                     "echo: axis y 4",
                     "echo: cut point layer.0/residual [16,32,8,] [batch,seq,embed,] bytes 16384 layer 0",
                     "echo: cut point layer.1/residual [16,32,8,] [batch,seq,embed,] bytes 16384 layer 1",
                     "echo: layer layer.0 384 1000 1001 1002",
                     "echo: layer layer.1 0 2000 2001 2002",
                     "echo! that was all",
                 });
}

TEST_CASE("a strategy gets the contents of an option's file", "[plugins]") {
  std::vector<std::string> lines;
  const Strategy echo = Strategy::open(
      fixtures, "echo", [&](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); });
  StrategyRequest request = small_request(2);
  request.options = {{"order", OptionFile{"/jobs/mine.csv", "0,1\n"}}};

  static_cast<void>(echo.make_plan(request));

  CHECK_THAT(lines.at(0), Catch::Matchers::EndsWith("order=/jobs/mine.csv[0,1\n]"));
  request.options = {{"order", std::string("middle")}};
  CHECK_THAT(plan_error(echo, request),
             Contains("option 'order' is 'middle', expected one of first, last, or a file's path"));
  request.options = {{"mode", OptionFile{"/jobs/mine.csv", ""}}};
  CHECK_THAT(plan_error(echo, request), Contains("option 'mode' is '/jobs/mine.csv', expected one of a, b"));
}

TEST_CASE("later statements replace earlier ones, and globs are expanded", "[plugins]") {
  const Strategy echo = Strategy::open(fixtures, "echo", [](LogLevel, std::string_view, std::string_view) {});

  const plan::Plan plan = echo.make_plan(small_request(2));

  CHECK(plan.axes == std::vector<AxisPlacement>{{"batch", {}}, {"heads", {"model"}}});
  CHECK(plan.tensors == std::vector<TensorPlacement>{{"w", TensorRole::store, {{}, {"model", "data"}}},
                                                     {"b", TensorRole::store, {{}}},
                                                     {"b", TensorRole::gradient, {{"data"}}},
                                                     {"square", TensorRole::store, {{}, {}}},
                                                     {"square", TensorRole::gradient, {{}, {"model"}}, {"data"}},
                                                     {"field", TensorRole::store, {{}, {}}}});
  CHECK(plan.cut_points == std::vector<CutPointPlacement>{{"layer.0/residual", {{}, {"model"}, {}}},
                                                          {"layer.1/residual", {{}, {"model"}, {}}}});
  CHECK(plan.bucket_bytes == std::uint64_t{5} << 32U);
}

TEST_CASE("an invalid plan is refused at the border, with the plugin and the item", "[plugins]") {
  CHECK(fault("none") == "nothing");
  CHECK_THAT(fault("mesh_too_large"),
             Contains("2: strategy 'illegal' (" SHARDRUN_FIXTURES) && Contains("wrote a plan that cannot be") &&
                 Contains("its mesh (data = 2, model = 2, pipe = 3) has 12 places, but the job has 4 ranks"));
  CHECK_THAT(fault("mesh_overflow"), Contains("but the job has 4 ranks"));
  CHECK_THAT(fault("mesh_zero"), Contains("add_mesh_axis('pipe'): its size is 0"));
  CHECK_THAT(fault("mesh_twice"), Contains("add_mesh_axis('data'): the mesh has an axis of that name already"));
  CHECK_THAT(fault("mesh_nameless"), Contains("add_mesh_axis(''): the name is empty"));
  CHECK_THAT(fault("unknown_axis"), Contains("place_axis('bach'): the graph has no axis of that name (did you mean "
                                             "'batch'?) (known: batch, seq, embed,"));
  CHECK_THAT(fault("unknown_mesh_axis"), Contains("place_axis('batch'): the plan has added no mesh axis 'date' (did "
                                                  "you mean 'data'?) (known: data, model)"));
  CHECK_THAT(fault("axis_twice"), Contains("place_axis('batch'): mesh axis 'data' occurs twice in one placement"));
  CHECK_THAT(fault("unknown_tensor"), Contains("place_tensor('layr.*'): 'layr.*' matches no tensor"));
  CHECK_THAT(fault("unknown_role"), Contains("place_tensor('*'): there is no role 9"));
  CHECK_THAT(fault("dims_share"), Contains("place_tensor('w'): mesh axis 'data' occurs twice in one placement"));
  CHECK_THAT(fault("dim_twice"), Contains("place_tensor('w'): dimension 0 of 'w' is split twice"));
  CHECK_THAT(fault("flat_twice"), Contains("place_tensor('w'): the flattened elements are split twice"));
  CHECK_THAT(fault("flat_shares"), Contains("place_tensor('w'): mesh axis 'data' occurs twice in one placement"));
  CHECK_THAT(fault("flat_cut_point"), Contains("the flattened elements of 'layer.0/residual' cannot be split: of a cut "
                                               "point only dimensions can"));
  CHECK_THAT(fault("no_such_dim"), Contains("place_tensor('*'): 'b' has 1 dimensions, so there is no dimension 1"));
  CHECK_THAT(fault("no_such_dim_axis"), Contains("'b' has 0 dimensions named 'mlp', expected one; its axes are []"));
  CHECK_THAT(fault("ambiguous_dim"), Contains("'square' has 2 dimensions named 'embed'"));
  CHECK_THAT(fault("unknown_cut_point"), Contains("'layer.*/residul' matches no cut point") &&
                                             Contains("known: layer.0/residual, layer.1/residual"));
  CHECK_THAT(fault("swallowed"), Contains("place_axis('bach'): the graph has no axis of that name"));
}

TEST_CASE("a plan must hold the job's mesh", "[plugins]") {
  const Strategy rows = Strategy::open(fixtures, "rows");
  StrategyRequest request = small_request(4);

  request.job.mesh = {{"data", 4}, {"model", 1}};
  CHECK(plan_error(rows, request) == "nothing");
  request.job.mesh = {{"data", 2}, {"model", 2}};
  CHECK_THAT(plan_error(rows, request), Contains("the job's mesh has data = 2, but the plan's has not (data = 4)"));
}

TEST_CASE("an exception of a strategy becomes the job's error", "[plugins]") {
  CHECK(thrown("failure") == "2: strategy 'throws': no plan came to mind");
  CHECK(thrown("invalid") == "2: strategy 'throws': the job has an odd number of ranks: make it even");
  CHECK(thrown("number") == "2: strategy 'throws': an exception of an unknown type was thrown");
  CHECK_THAT(thrown("undeclared"), Contains("asks for the option 'depth', which it did not declare so"));
  CHECK_THAT(plan_error(Strategy::open(fixtures, "escapes"), small_request(1)),
             Contains("let an exception out, which no plugin may: thrown across the border"));
}

TEST_CASE("a long reason is cut between characters", "[plugins]") {
  const std::string text = thrown("long");
  const std::string reason = text.substr(text.find('x'));

  CHECK(reason.size() == 507);
  CHECK(reason.ends_with("ß"));
}

TEST_CASE("an option value outside the declared range does not reach the strategy", "[plugins]") {
  const Strategy echo = Strategy::open(fixtures, "echo", [](LogLevel, std::string_view, std::string_view) {});
  StrategyRequest request = small_request(1);

  request.options = {{"depth", std::int64_t{9}}};
  CHECK(plan_error(echo, request) ==
        "2: strategy 'echo': option 'depth' is '9', expected an integer, at least 1 and at most 8");
}

TEST_CASE("hooks and varying tensors are checked when they are written", "[plugins]") {
  CHECK_THAT(fault("hook_every_0"), Contains("after_step('*'): every is 0 steps, expected at least 1"));
  CHECK_THAT(fault("hook_over_nothing"), Contains("sync_gradients('*')") && Contains("did you mean 'data'"));
  CHECK_THAT(fault("hook_of_untrained"), Contains("sync_gradients('field'): what it matches is not trained"));
  CHECK_THAT(fault("hook_state_first"), Contains("add_hook_state('kept'): the plan has no hook 2: it is set before"));
  CHECK_THAT(fault("hook_state_slash"), Contains("at most 64 characters, and no '/'"));
  CHECK_THAT(fault("hook_state_twice"), Contains("there is a state of that name already"));
  CHECK_THAT(fault("hook_twice"), Contains("sync_gradients('b'): the plan has this hook already"));
  CHECK_THAT(fault("hook_state_of_gradients"), Contains("a state of this hook cannot begin as 2"));
  CHECK_THAT(fault("vary_unknown"), Contains("vary('wight'): 'wight' matches no tensor"));
}

TEST_CASE("a plan with a hook needs a strategy with its function", "[plugins]") {
  const Strategy illegal = Strategy::open(fixtures, "illegal");
  StrategyRequest request = small_request(4);
  request.options.set("fault", "hook_missing");
  const plan::Plan plan = illegal.make_plan(request);

  REQUIRE(plan.find_hook(HookKind::sync_gradients) != nullptr);
  CHECK(plan.find_hook(HookKind::sync_gradients)->tensors == std::vector<std::string>{"w", "b", "square"});
  CHECK(plan.find_hook(HookKind::after_step) == nullptr);
  CHECK_THAT(error_of([&] { (void)illegal.hooks(request, plan); }),
             Contains("plans the hook sync_gradients, but has no sync_gradients"));
}
