// A file that Python's package safetensors wrote (bench/fixtures/make_safetensors.py).

#include <cstddef>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::checkpoint;
using namespace shardrun::test;

TEST_CASE("a file written by Python is read in every element type, and we write the same bytes", "[checkpoint]") {
  const SafetensorsFile python(SHARDRUN_FIXTURES "/python.safetensors");
  constexpr std::size_t types = 15;
  CHECK(python.metadata() == Metadata{{"made by", "\"Python\""}});
  REQUIRE(python.tensors().size() == types);
  std::vector<std::vector<std::byte>> values(types);
  std::vector<Tensor> tensors;
  for (std::size_t number = 0; number < types; ++number) {
    const auto dtype = static_cast<DType>(number);
    for (std::size_t i = 0; i < 6 * element_bytes(dtype); ++i) {
      values[number].push_back(static_cast<std::byte>(dtype == DType::boolean ? i % 2 : 16 * number + i));
    }
    tensors.push_back({{to_string(dtype), dtype, {2, 3}}, values[number]});
    const Tensor& found = python.at(to_string(dtype));
    CHECK(found.info == tensors.back().info);
    CHECK(std::vector<std::byte>(found.bytes.begin(), found.bytes.end()) == values[number]);
  }
  const TemporaryFolder folder;
  write_safetensors(folder / "ours.safetensors", tensors, python.metadata());
  CHECK(read_file(folder / "ours.safetensors") == read_file(SHARDRUN_FIXTURES "/python.safetensors"));
}
