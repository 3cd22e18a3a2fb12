#include "plugins/loader/model.h"

#include <shardrun/model.h>

#include <string>

#include "plugins/loader/call.h"
#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

/// The error about a model that does one thing wrong.
std::string model_fault(const std::string& name) {
  static const Model muddled = Model::open(fixtures, "muddled");
  const ModelRequest request{.options = {{"fault", name}}, .data = SR_DATA_ARRAYS, .features = 4, .outputs = 1};
  return error_of([&] {
    graph::Graph graph;
    muddled.declare(graph, request);
    graph::FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
    (void)muddled.write_function(builder, request, "iterate", 0, false);
  });
}

std::string wrote(const std::string& what) {
  return "2: model 'muddled' (" SHARDRUN_FIXTURES "/shardrun_model_muddled.so) wrote what cannot be: " + what;
}

}  // namespace

TEST_CASE("a model in C writes a graph", "[plugins]") {
  const Model fading = Model::open(fixtures, "fading");
  CHECK(fading.help() == "a field that fades");
  CHECK(fading.data() == 0);
  CHECK(fading.has("iterate"));
  CHECK_FALSE(fading.has("loss"));
  REQUIRE(fading.options().size() == 2);
  const OptionSpec& cells = fading.options()[0];
  CHECK_FALSE(cells.default_value.has_value());
  CHECK_FALSE(cells.optional);
  const OptionSpec& factor = fading.options()[1];
  CHECK(factor.default_value == "0.5");
  CHECK(factor.maximum_excluded);
  REQUIRE(factor.aliases.size() == 1);
  CHECK(factor.aliases[0].name == "gamma");
  CHECK(factor.aliases[0].note == "per step here");

  const ModelRequest request{.options = {{"cells", std::int64_t{5}}, {"factor", 0.25}}};
  graph::Graph graph;
  fading.declare(graph, request);
  graph::FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  CHECK_FALSE(fading.write_function(builder, request, "iterate", 0, false).values.exists());
  builder.finish();

  REQUIRE(graph.states.size() == 1);
  const graph::State& u = graph.states.front();
  CHECK(u.name == "u");
  CHECK(to_string(u.type) == "f32[x 5, y 3]");
  CHECK(u.kind == graph::StateKind::field);
  CHECK(u.initializer.kind == graph::Initializer::Kind::normal);
  CHECK(u.initializer.value == 0.5);
  CHECK(u.layer == -1);
  const graph::Function& function = graph.functions.front();
  REQUIRE(function.nodes.size() == 1);
  CHECK(function.nodes.front().name == "next");
  CHECK(function.nodes.front().attributes.reals("coefficients") == std::vector<double>{0.25});
  REQUIRE(function.writes.size() == 1);
  CHECK(function.writes[0].value == function.nodes.front().outputs[0]);
}

TEST_CASE("SDK functions for rows and sequences call their ops", "[plugins]") {
  const Model attentive = Model::open(fixtures, "attentive");
  graph::Graph graph;
  attentive.declare(graph, {});
  graph::FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  (void)attentive.write_function(builder, {}, "iterate", 0, false);

  std::vector<std::string> calls;
  for (const graph::Node& node : builder.function().nodes) {
    calls.push_back(node.op->name + " " + graph::to_string(node.attributes));
  }
  CHECK(calls ==
        std::vector<std::string>{
            "rms_norm {epsilon=0.5}", "rope {dim=1, base=500, offset=2, interleaved=1, inverse=0}",
            "rope {dim=1, base=10000, offset=0, interleaved=0, inverse=0}", "cumulative_sum {dim=1, reverse=1}",
            "scaled_dot_product_attention {causal=1, window=3, scale=0.25, dropout=0, stream=attention}",
            "log_softmax ", "scaled_dot_product_attention {causal=0, window=0, scale=0, dropout=0, stream=attention}",
            "softmax "});
}

TEST_CASE("a model's refusal has its reason and the setting at fault", "[plugins]") {
  const Model fading = Model::open(fixtures, "fading");
  graph::Graph graph;
  try {
    fading.declare(graph, {.options = {{"cells", std::int64_t{13}}}});
    FAIL("it was not refused");
  } catch (const Invalid& invalid) {
    CHECK(invalid.code() == ErrorCode::job);
    CHECK(invalid.reason() == "[model] cells = 13 brings bad luck");
    CHECK(invalid.setting() == "model.cells");
  }
  CHECK(model_fault("invalid") == "2: model 'muddled': [model] fault is a fault");
}

TEST_CASE("a plugin's text is cut between characters, and the full length stated", "[plugins]") {
  CHECK(excerpt(std::string(4096, 'a')) == std::string(4096, 'a'));
  CHECK(excerpt(std::string(4095, 'a') + "\xc3\xa9 and more") == std::string(4095, 'a') + "… (4106 bytes)");
}

TEST_CASE("a model that writes an invalid graph is refused", "[plugins]") {
  CHECK(model_fault("none") == "nothing");
  CHECK(model_fault("state_twice") == wrote("add_state('u'): there is a state of that name already"));
  CHECK(model_fault("state_nameless") == wrote("add_state(''): the name is '', expected 1 to 200 printable bytes"));
  CHECK(model_fault("state_name") ==
        wrote("add_state('bad name!'): the name is 'bad name!', expected letters, digits and . _ - / only"));
  CHECK(model_fault("state_empty") == wrote("add_state('v'): dimension 0 has size 0, expected at least 1"));
  CHECK(model_fault("axis_twice") == wrote("add_state('v'): two dimensions have the axis 'x'"));
  CHECK_THAT(model_fault("axis_name"), Contains("the axis of dimension 0 is 'x*', expected letters, digits"));
  CHECK(model_fault("axis_nameless") ==
        wrote("add_state('v'): the axis of dimension 0 is '', expected 1 to 200 printable bytes"));
  CHECK(model_fault("too_many_dimensions") ==
        wrote("add_state('v'): the type has 9 dimensions; expected at most 8, each with its size and axis"));
  CHECK(model_fault("initial_nan") == wrote("add_state('v'): initial_value is not finite"));
  CHECK(model_fault("initial_unknown") == wrote("add_state('v'): there is no way 77 of setting first values"));
  CHECK(model_fault("too_many_layers") == wrote("set_layers: 1073741824 layers, expected at most 1048576"));
  CHECK(
      model_fault("output_after_steps") ==
      wrote(
          "output('o'): its file would have the name of one of output 'o-000001' after some step: call it otherwise"));
  CHECK(model_fault("unknown_state") == wrote("state('w'): the model has no state of that name (did you mean 'u'?)"));
  CHECK(model_fault("unknown_op") == wrote("call('sine'): models have no op of that name (did you mean 'sin'?)"));
  CHECK(model_fault("hosts_op") == wrote("call('adamw'): models have no op of that name"));
  CHECK_THAT(model_fault("too_few_operands"), Contains("call('multiply'): ") && Contains("expected 2 operands"));
  CHECK_THAT(model_fault("shapes"), Contains("call('multiply'): ") && Contains("is 4 in an earlier operand and 5"));
  CHECK(model_fault("no_attribute") == wrote("call('sum_all'): attribute 'scale' is missing"));
  CHECK(model_fault("attribute_unknown") ==
        wrote("call('sum_all'): attribute 'axis' is none that the op takes; it takes scale"));
  CHECK(model_fault("attribute_type") == wrote("call('sum_all'): attribute 'scale' is a text, expected a real number"));
  CHECK(model_fault("attribute_nan") == wrote("call('sum_all'): attribute 'scale' is not finite"));
  CHECK(model_fault("choice") == wrote("call('gelu'): attribute 'form' is 'sigmoid', expected one of tanh, erf"));
  CHECK(model_fault("dimension") == wrote("call('shift'): shift along dimension 1 of an operand with 1"));
  CHECK(model_fault("contract") == wrote("call('matmul'): attribute 'contract' is -1, expected 0 to 8"));
  CHECK(model_fault("coefficients") ==
        wrote("call('linear_combination'): linear_combination has 1 coefficients for 2 operands"));
  CHECK(model_fault("attribute_twice") == wrote("call('sum_all'): the attribute 'scale' is given twice"));
  CHECK(model_fault("input_twice") == wrote("input('i'): there is an input of that name already"));
  CHECK_THAT(model_fault("write_shape"), Contains("write('u'): function iterate: state u is f32[x 4], but f32[]"));
  CHECK(model_fault("write_twice") == wrote("write('u'): the function has written that state already"));
  CHECK(model_fault("no_layer") == wrote("set_layer: there is no layer 3: expected -1 to 2"));
  CHECK(model_fault("later_layer") ==
        wrote("call('abs'): layer 0 reads 'tanh' of layer 2: a layer reads values of earlier layers only, so call "
              "set_layer with rising numbers"));
  CHECK_THAT(model_fault("gradient_of_later"), Contains("gradient: layer 0 reads 'sum_all' of layer 1: "));
  CHECK(model_fault("cut_point_twice") ==
        wrote("cut_point('cut'): function iterate: two values are the cut point 'a/cut'"));
  CHECK_THAT(model_fault("cut_point_name"), Contains("cut_point('a,b'): the name is 'a,b', expected letters"));
  CHECK_THAT(model_fault("gradient_of_tensor"), Contains("gradient: expected a scalar, found f32[x 4]"));
  CHECK_THAT(
      model_fault("losses"),
      Contains(
          "set_losses: the losses are f32[batch 1], expected f32[batch 0, ...], of which the host takes the mean"));
}

TEST_CASE("a model's function forward has the data's inputs alone, and outputs for each sample", "[plugins]") {
  static const Model muddled = Model::open(fixtures, "muddled");
  const auto fault = [](const char* name) {
    const ModelRequest request{.options = {{"fault", name}}, .data = SR_DATA_ARRAYS, .features = 4, .outputs = 1};
    return error_of([&] {
      graph::Graph graph;
      graph::FunctionBuilder builder(graph, "forward", graph::Role::on_demand, 3);
      (void)muddled.write_function(builder, request, "forward", 3, false);
    });
  };
  CHECK(fault("none") == "nothing");
  CHECK_THAT(fault("forward_input"),
             Contains("the inputs of the function 'forward' are inputs f32[batch 3, features 4], targets f32[batch 3, "
                      "outputs 1]; expected inputs f32[batch 3, 4]"));
  CHECK_THAT(fault("forward_rows"), Contains("the outputs of the function 'forward' are outputs f32[features 4]; "
                                             "expected outputs f32[batch 3, ...]"));
  CHECK_THAT(fault("forward_integers"), Contains("output('outputs'): it is i32[batch 3, features 4]; expected f32"));
}

TEST_CASE("a model can neither ignore a refusal nor hide a failure", "[plugins]") {
  CHECK_THAT(model_fault("ignores"), Contains("state('w'): the model has no state of that name"));
  CHECK(model_fault("throws") == "2: model 'muddled': something broke");
  CHECK_THAT(model_fault("never_set"), Contains("a value that was never set is used"));
}

TEST_CASE("a tensor that is too large is an error of the job", "[plugins]") {
  static const Model muddled = Model::open(fixtures, "muddled");
  graph::Graph graph;
  try {
    muddled.declare(graph, {.options = {{"fault", "too_large"}}});
    FAIL("it was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::job);
    CHECK_THAT(error.message(), Contains("v") && Contains("more than the"));
  }
}
