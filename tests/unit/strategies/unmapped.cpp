// Strategies on a device whose memory the host cannot address and whose work is done late.

#include "tests/support/catch.h"
#include "tests/unit/strategies/device_choices.h"

using namespace shardrun;
using namespace shardrun::test;

TEST_CASE("every strategy agrees with the reference on a device that the host cannot address", "[strategies]") {
  for (const Choice& choice : choices_of_devices()) {
    check_agrees(plain_gpt(), choice, "unmapped");
    check_agrees(full_gpt(), choice, "unmapped");
  }
  check_agrees(mlp_of_numbers(), of("zero3", ranks(3)), "unmapped");
  check_agrees(mlp_of_labels(), of("topk", ranks(3), {{"ratio", 1.0}}), "unmapped");
}
