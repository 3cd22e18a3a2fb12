#include "core/metrics/other_formats.h"

#include <array>
#include <cmath>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;

namespace {

constexpr std::array<std::string_view, 4> columns = {"step", "loss", "val_loss", "lr"};

}  // namespace

TEST_CASE("metrics.csv has a column for each field, and empty cells", "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter lines(folder / "metrics.jsonl");
  CsvWriter table(folder / "metrics.csv", folder / "metrics.jsonl", columns);
  CHECK(read_file(folder / "metrics.csv") == "step,loss,val_loss,lr\r\n");

  for (const std::vector<JsonField>& fields : std::vector<std::vector<JsonField>>{
           {{"step", std::int64_t{1}}, {"loss", 1.0 / 3}, {"lr", 1e-4}},
           {{"step", std::int64_t{2}}, {"loss", std::nan("")}, {"val_loss", 2.0}, {"lr", 1e22}}}) {
    lines.write(fields);
    table.write(fields);
  }

  const std::string expected = "step,loss,val_loss,lr\r\n1,0.3333333333333333,,1e-04\r\n2,,2,1e+22\r\n";
  CHECK(read_file(folder / "metrics.csv") == expected);
  table.rewrite();
  CHECK(read_file(folder / "metrics.csv") == expected);
}

TEST_CASE(
    "metrics.csv has the lines that metrics.jsonl has when it is begun, and follows a validation that comes later",
    "[metrics]") {
  const TemporaryFolder folder;
  JsonlWriter lines(folder / "metrics.jsonl");
  lines.write(std::vector<JsonField>{{"step", std::int64_t{10}}, {"loss", 2.5}});
  write_file(folder / "metrics.csv", "of an attempt whose steps are lost\n");

  CsvWriter table(folder / "metrics.csv", folder / "metrics.jsonl", columns);
  CHECK(read_file(folder / "metrics.csv") == "step,loss,val_loss,lr\r\n10,2.5,,\r\n");
  lines.add_validation(10, 3);
  table.rewrite();
  table.write(std::vector<JsonField>{{"step", std::int64_t{11}}});

  CHECK(read_file(folder / "metrics.csv") == "step,loss,val_loss,lr\r\n10,2.5,3,\r\n11,,,\r\n");
}
