#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/faults.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;
using runtime::Fault;

namespace {

/// A gpt whose token table is on the first stage and on the last.
VerifyCase tied_gpt() {
  return VerifyCase(training_case("gpt tied", "gpt",
                                  {{"layers", "2"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}}, {.vocab = 5},
                                  {.batch = 6, .microbatches = 3, .optimizer = {.clip = 0.5}}));
}

const std::vector<Fault::Kind> all_kinds = {Fault::Kind::omit, Fault::Kind::swap, Fault::Kind::scale};
/// For sums over stages: only one stage has something to add, so `swap` changes nothing.
const std::vector<Fault::Kind> kinds_of_pipelines = {Fault::Kind::omit, Fault::Kind::scale};

/// Plants every fault in every `stride`th transfer that a rank makes in a step, and checks that each is seen.
void check_seen(const VerifyCase& checked, const Choice& choice, std::int64_t rank,
                const std::vector<Fault::Kind>& kinds, std::size_t stride = depth<std::size_t>(1, 5, 16)) {
  const partition::Partition partition = split_by(checked.model, choice);
  const std::vector<Numbered> transfers = visible_transfers(checked.model, partition, step_calls(checked.model), rank);
  REQUIRE_FALSE(transfers.empty());
  for (std::size_t t = 0; t < transfers.size(); t += stride) {
    const auto& [number, transfer] = transfers[t];
    for (const Fault::Kind kind : kinds) {
      if (is_visible(transfer, kind)) {
        INFO(checked.model.name << ", " << to_string(choice) << ", rank " << rank << ", transfer " << number << ", "
                                << partition::to_string(transfer.collective) << " of " << transfer.name << ", fault "
                                << static_cast<int>(kind));
        const Fault fault{kind, number, static_cast<std::size_t>(rank)};
        CHECK_FALSE(verify::verify_interpreted(checked.workload(), partition, {.steps = 3, .fault = fault}).passed());
      }
    }
  }
}

}  // namespace

// Adam's first step moves every element by the same amount, so blocks that change places show only from the third
// step on.
TEST_CASE("every fault in a transfer of ZeRO fails the verification", "[strategies]") {
  for (const char* strategy : {"zero1", "zero2", "zero3"}) {
    check_seen(small_gpt(), {strategy, ranks(2), {{"bucket_mb", 0.0}}}, 0, all_kinds);
    check_seen(small_gpt(), {strategy, ranks(2)}, 1, all_kinds);
  }
}

TEST_CASE("every fault in a message of a pipeline fails the verification", "[strategies]") {
  for (const std::string& schedule : all_schedules()) {
    Choice choice{"pp", ranks(2)};
    add_schedule(choice.options, schedule);
    for (const std::int64_t rank : {0, 1}) {
      check_seen(tied_gpt(), choice, rank, kinds_of_pipelines);
    }
  }
  for (const std::int64_t rank : {0, 1, 2}) {
    check_seen(tied_gpt(), {"pp", ranks(3)}, rank, kinds_of_pipelines);
  }
}

TEST_CASE("faults in transfers of a mesh of three axes fail the verification", "[strategies]") {
  const Choice cube{"3d", {{"data", 2}, {"model", 2}, {"pipe", 2}}, {{"zero", std::int64_t{3}}, {"sequence", true}}};
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    check_seen(tied_gpt(), cube, rank, kinds_of_pipelines, depth<std::size_t>(11, 44, 44));
  }
}
