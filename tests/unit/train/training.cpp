#include "core/train/training.h"

#include <malloc.h>

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::vector<double> losses(const job::Job& job, std::int64_t steps, std::string_view device = "cpu") {
  const compile::Compiled compiled = compile_ready(job, device);
  train::Training training(job, compiled);
  training.initialize();
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    losses.push_back(training.step(step).loss);
  }
  losses.push_back(training.evaluate().value());
  return losses;
}

double worst_relative(const std::vector<double>& found, const std::vector<double>& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] / expected[i] - 1));
  }
  return worst;
}

}  // namespace

TEST_CASE("the loss begins at the logarithm of the vocabulary and falls", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const compile::Compiled compiled = compile_ready(job);
  train::Training training(job, compiled);
  training.initialize();
  const double first = training.step(0).loss;
  CHECK(first == Approx(std::log(compiled.dataset->shape().vocab)).epsilon(0.02));
  double last = first;
  for (std::int64_t step = 1; step < 60; ++step) {
    last = training.step(step).loss;
  }
  CHECK(last < 0.9 * first);
  CHECK(training.evaluate().value() < 0.9 * first);
}

TEST_CASE("the cpu trains as the float64 reference does", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"model.dropout=0.2", "model.bias=true", "data.microbatches=2"});
  CHECK(worst_relative(losses(job, 6), losses(job, 6, "reference")) < 1e-5);
}

TEST_CASE("microbatches and evaluation rows do not change the losses", "[train]") {
  const TemporaryFolder folder;
  const std::vector<double> whole = losses(text_job_in(folder, {"model.dropout=0.2"}), 8);
  for (const char* parts : {"data.microbatches=2", "data.microbatches=3", "data.microbatches=7"}) {
    INFO(parts);
    CHECK(worst_relative(losses(text_job_in(folder, {"model.dropout=0.2", parts}), 8), whole) < 1e-5);
    CHECK(worst_relative(losses(text_job_in(folder, {"model.dropout=0.2", parts, "data.eval_batch=5"}), 8), whole) <
          1e-5);
  }
}

TEST_CASE("each step takes the samples after those of the step before", "[train]") {
  const TemporaryFolder folder;
  const std::vector<std::string> standing_still = {"train.learning_rate=1e-30", "train.weight_decay=0"};
  const std::vector<double> of_seven = losses(text_job_in(folder, standing_still), 4);
  std::vector<std::string> twice = standing_still;
  twice.emplace_back("data.batch=14");
  const std::vector<double> of_fourteen = losses(text_job_in(folder, twice), 2);
  CHECK(of_fourteen[0] == Approx((of_seven[0] + of_seven[1]) / 2).epsilon(1e-6));
  CHECK(of_fourteen[1] == Approx((of_seven[2] + of_seven[3]) / 2).epsilon(1e-6));
  CHECK(std::abs(of_seven[0] - of_seven[1]) > 1e-5);
}

TEST_CASE("evaluation changes no state but the loss, and may be repeated", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"model.dropout=0.2"});
  const compile::Compiled compiled = compile_ready(job);
  train::Training plain(job, compiled);
  train::Training evaluated(job, compiled);
  plain.initialize();
  evaluated.initialize();
  for (std::int64_t step = 0; step < 4; ++step) {
    const double value = evaluated.evaluate().value();
    CHECK(evaluated.evaluate().value() == value);
    CHECK(evaluated.step(step).loss == plain.step(step).loss);
  }
}

TEST_CASE("the reported gradient norm is the norm before clipping", "[train]") {
  const TemporaryFolder folder;
  const auto first_norm = [&](const char* clip) {
    const job::Job job = text_job_in(folder, {clip});
    const compile::Compiled compiled = compile_ready(job);
    train::Training training(job, compiled);
    training.initialize();
    return training.step(0).gradient_norm;
  };
  const double norm = first_norm("train.clip=0");
  CHECK(norm > 0.1);
  CHECK(first_norm("train.clip=0.001") == norm);
}

TEST_CASE("the heap does not grow from step to step", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"data.microbatches=2"});
  const compile::Compiled compiled = compile_ready(job);
  train::Training training(job, compiled);
  training.initialize();
  const auto run_to = [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      static_cast<void>(training.step(step));
      static_cast<void>(training.evaluate());
    }
    return mallinfo2().uordblks;
  };
  const std::size_t after_two = run_to(0, 2);
  CHECK(run_to(2, 20) == after_two);
}

TEST_CASE("a loss that is not finite ends training with the tensor's name, and parameters are unchanged", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"train.learning_rate=1e30"});
  const compile::Compiled compiled = compile_ready(job);
  train::Training training(job, compiled);
  training.initialize();
  static_cast<void>(training.step(0));
  const graph::StateId weights = compiled.graph.find_state("final_norm/gain");
  const graph::TensorType& type = compiled.graph.states[weights].type;
  const Tensor before = read_view(type, training.executor().state(weights));

  const std::string message = error_of([&] { static_cast<void>(training.step(1)); });

  CHECK(message.find("1: step 2: the loss is NaN; the first tensor that is not finite: layer.0/") == 0);
  CHECK(message.find(
            ", microbatch 0. The parameters are those of the step before. A smaller [train] learning_rate, a longer "
            "warmup or clip > 0 may help") != std::string::npos);
  CHECK(read_view(type, training.executor().state(weights)).values == before.values);
}

TEST_CASE("a parameter that is not finite is named", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const compile::Compiled compiled = compile_ready(job);
  train::Training training(job, compiled);
  training.initialize();
  const graph::StateId gain = compiled.graph.find_state("layer.1/mlp_norm/gain");
  static_cast<float*>(training.executor().state(gain).data)[3] = std::nanf("");
  CHECK(error_of([&] { static_cast<void>(training.step(0)); })
            .find("1: step 1: the loss is NaN; the first tensor that is not finite: layer.1/mlp_norm/gain (a "
                  "parameter). ") == 0);
}

namespace {

/// The other rank, whose parts are zero. Only `bad` transfers, from number `first` on, come back as NaN.
class Other final : public runtime::Communicator {
 public:
  explicit Other(std::size_t bad, std::size_t first = 0) : first_(first), end_(first + bad) {}

  Handle prepare(const partition::Transfer&, const TransferBuffers& buffers, bool) override {
    buffers_.push_back(buffers);
    return buffers_.size() - 1;
  }
  void start(Handle transfer) override {
    const std::size_t number = started++;
    if (number >= first_ && number < end_) {
      *static_cast<float*>(buffers_[transfer].recv) = std::nanf("");
    }
  }
  bool test(Handle) override { return true; }
  void wait(Handle) override {}

  std::size_t started = 0;

 private:
  std::size_t first_;
  std::size_t end_;
  std::vector<TransferBuffers> buffers_;
};

/// The first of two ranks, in a step whose loss is not finite.
struct FirstOfTwo {
  TemporaryFolder folder;
  job::Job job = text_job_in(folder, {"data.microbatches=3"});
  compile::Compiled compiled = compile_ready(job);
  std::vector<std::int32_t> given;  ///< what this rank gave to agree on
  std::vector<std::string> found;   ///< what it told of what is not finite, in each microbatch

  FirstOfTwo() {
    compiled.partition = partition::split(compiled.graph, tensor_parallel(2));
    compiled.programs =
        partition::programs_of(compiled.graph, compiled.partition, {.device = *compiled.device, .rank = 0});
  }

  [[nodiscard]] std::int32_t from_end(const char* state) const {
    return compiled.graph.states.next().number() - compiled.graph.find_state(state).number();
  }

  /// The number of transfers of the first `microbatches` microbatches.
  [[nodiscard]] std::size_t transfers(std::size_t microbatches) const {
    std::size_t count = 0;
    for (std::size_t m = 0; m < microbatches; ++m) {
      count += compiled.programs.find("micro", compiled.microbatch_rows[m], m == 2).transfers.size();
    }
    return count;
  }

  /// What the step throws. `others`: what the other rank gives to agree on, one after the other, then 0.
  /// `others_found`: what it tells in each microbatch of what is not finite, then nothing.
  std::string step(Other& other, const std::vector<std::int32_t>& others, const char* bad_parameter = nullptr,
                   const std::vector<std::string>& others_found = {}) {
    train::Training training(
        job, compiled,
        [&](std::int32_t value, std::int32_t) {
          given.push_back(value);
          return std::max(value, given.size() <= others.size() ? others[given.size() - 1] : 0);
        },
        [&](std::string_view, const std::string& own, const auto& make) {
          found.push_back(own);
          return make({own, found.size() <= others_found.size() ? others_found[found.size() - 1] : ""});
        });
    training.executor().bind(other);
    training.initialize();
    if (bad_parameter != nullptr) {
      *static_cast<float*>(training.executor().state(compiled.graph.find_state(bad_parameter)).data) = std::nanf("");
    }
    return error_of([&] { static_cast<void>(training.step(0)); });
  }
};

}  // namespace

TEST_CASE("ranks agree on the first bad parameter of any rank, and run nothing again", "[train]") {
  const char* early = "layer.0/mlp/up/weights";
  const char* late = "layer.1/mlp/up/weights";
  struct Case {
    const char* own;
    const char* others;
    const char* named;
  };
  for (const Case& each : {Case{early, nullptr, early}, Case{nullptr, late, late}, Case{late, early, early}}) {
    FirstOfTwo first;
    Other other(1);
    const std::string error = first.step(other, {each.others == nullptr ? 0 : first.from_end(each.others)}, each.own);
    CHECK(error.find(std::string("that is not finite: ") + each.named + " (a parameter)") != std::string::npos);
    CHECK(first.given == std::vector<std::int32_t>{each.own == nullptr ? 0 : first.from_end(each.own)});
    CHECK(other.started == first.transfers(3));
  }
}

TEST_CASE("a step that runs again ends on all ranks with the bad microbatch of one", "[train]") {
  FirstOfTwo first;
  Other other(1);
  const std::string error = first.step(other, {}, nullptr, {"", "0 0 0 0 9 gelu (op gelu, function micro)"});
  CHECK(error.find("that is not finite: gelu (op gelu, function micro) of rank 1, microbatch 1. ") !=
        std::string::npos);
  CHECK(first.found == std::vector<std::string>(2));
  CHECK(other.started == first.transfers(3) + first.transfers(2));

  FirstOfTwo again;
  Other always(1000);
  CHECK(again.step(always, {}).find(" over model, function micro) of rank 0, microbatch 0") != std::string::npos);
  REQUIRE(again.found.size() == 1);
  CHECK(again.found[0].find(" over model, function micro)") != std::string::npos);
}

TEST_CASE("if two ranks find bad tensors, the earlier one in the microbatch is reported", "[train]") {
  // What the other rank has found: call, phase (0: forward), layer, whether received, instruction, name.
  const auto is_heard = [&](const std::string& others_found) {
    FirstOfTwo first;
    Other always(1000);
    return first.step(always, {}, nullptr, {others_found}).find("sum of rank 1, microbatch 0") != std::string::npos;
  };
  // This rank finds the embedding, a sum over both ranks, before the layers.
  CHECK(is_heard("0 0 -1 0 0 sum"));
  CHECK_FALSE(is_heard("0 0 -1 0 1000 sum"));
  CHECK_FALSE(is_heard("0 0 -1 1 0 sum"));
  CHECK_FALSE(is_heard("0 0 0 0 0 sum"));
  CHECK_FALSE(is_heard("0 1 -1 0 0 sum"));
  CHECK_FALSE(is_heard("1 0 -1 0 0 sum"));
}

TEST_CASE("ranks agree on the first bad gradient of any rank", "[train]") {
  FirstOfTwo first;
  Other other(1000, first.transfers(3));
  const std::string error = first.step(other, {first.from_end("gradients/final_norm/gain")});
  CHECK(error.find("the gradient's norm is NaN; the first tensor that is not finite: gradients/final_norm/gain. ") !=
        std::string::npos);

  FirstOfTwo none;
  Other same(1000, none.transfers(3));
  CHECK(none.step(same, {}).find("the norm itself, which overflowed") != std::string::npos);
}

TEST_CASE("a compiled job knows its microbatches, memory and FLOPs before it runs", "[train]") {
  const TemporaryFolder folder;
  const compile::Compiled one = compile_ready(text_job_in(folder));
  const compile::Compiled three = compile_ready(text_job_in(folder, {"data.microbatches=3"}));
  CHECK(one.microbatch_rows == std::vector<std::int64_t>{7});
  CHECK(three.microbatch_rows == std::vector<std::int64_t>{3, 2, 2});
  CHECK(three.programs.memory.activations < one.programs.memory.activations);
  // The FLOPs of the products alone: forward 2 for each weight and token, and backward twice as many.
  const double products = 6.0 * 7 * 16 * 2 * 12 * 16 * 16;
  CHECK(compile::flops_per_step(one) > products);
  CHECK(compile::flops_per_step(one) < 3 * products);
}

TEST_CASE("a negative loss is impossible if its op cannot give one, except for rounding", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const compile::Compiled compiled = compile_ready(job);
  const train::Training training(job, compiled);
  CHECK(training.is_impossible(-1.12));
  CHECK_FALSE(training.is_impossible(-1e-6));
  CHECK_FALSE(training.is_impossible(2.5));
  // Nothing is known of an op that may give less than zero.
  compile::Compiled other = compile_ready(job);
  for (graph::Function& function : other.graph.functions) {
    for (graph::Node& node : function.nodes) {
      if (node.op->name == "token_loss") {
        node.op = &graph::find_op("negate");
      }
    }
  }
  CHECK_FALSE(train::Training(job, other).is_impossible(-1.12));
}
