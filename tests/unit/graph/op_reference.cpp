#include "core/graph/op_reference.h"

#include <fstream>
#include <iterator>
#include <string>

#include "core/graph/op.h"
#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("docs/ops.md equals the printed reference of ops", "[graph]") {
  std::ifstream file(SHARDRUN_SOURCE_DIR "/docs/ops.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());

  INFO("write it again: shardrun help ops --markdown > docs/ops.md");
  CHECK(page == graph::op_reference_markdown());
}

TEST_CASE("the reference of ops has every op that can be differentiated", "[graph]") {
  const std::string text = graph::op_reference();

  for (const graph::Op* op : graph::all_ops()) {
    INFO(op->name);
    const bool documented = text.find("\n" + op->name + "\n    result") != std::string::npos;
    CHECK(documented == !op->help.empty());
    CHECK((documented || op->gradient == nullptr));
  }
  CHECK(
      text.find("\neinsum\n"
                "    result    the sum of a b over the letters that the result lacks\n"
                "    attribute spec, a text: the letters of a, b and the result\n"
                "    attribute fixed_order, an integer from 0 to 1, may be left out: 1: on the cpu, the order of a sum "
                "depends on its length and on the second operand's layout alone\n"
                "    example   {spec=bij,bjk->bik}\n"
                "    types     real[2, 3, 4], real[2, 4, 5] -> real[2, 3, 5]\n"
                "    rule      b i j, b j k -> b i k; reduced j\n"
                "    gradient  yes\n") != std::string::npos);
}
