#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "core/checkpoint/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

std::string length_text(std::uint64_t length) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text;
}

std::string file_of(std::string_view header, std::string_view data) {
  return length_text(header.size()) + std::string(header) + std::string(data);
}

SafetensorsContents parse(std::string_view file) { return parse_safetensors(std::as_bytes(std::span(file)), "m.st"); }

std::string error_in(std::string_view file) {
  return error_of([&] { (void)parse(file); });
}

constexpr std::string_view two_tensors = R"({"b":{"dtype":"U8","shape":[2,3],"data_offsets":[4,10]},)"
                                         R"("__metadata__":{"step":"7","note":"naïve"},)"
                                         R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

}  // namespace

TEST_CASE("tensors, their order and the metadata are read", "[checkpoint]") {
  const TemporaryFolder folder;
  write_file(folder / "m.st", file_of(two_tensors, "aaaabbbbbb"));

  SafetensorsFile first(folder / "m.st");
  const SafetensorsFile file = std::move(first);

  REQUIRE(file.tensors().size() == 2);
  CHECK(file.tensors()[0].info == TensorInfo{"a", DType::f32, {}});
  CHECK(file.tensors()[1].info == TensorInfo{"b", DType::u8, {2, 3}});
  CHECK(std::memcmp(file.at("b").bytes.data(), "bbbbbb", file.at("b").bytes.size()) == 0);
  CHECK(file.find("c") == nullptr);
  CHECK(file.metadata() == Metadata{{"step", "7"}, {"note", "naïve"}});
}

TEST_CASE("a missing tensor is answered with the nearest name", "[checkpoint]") {
  const TemporaryFolder folder;
  write_file(folder / "m.st", file_of(R"({"layer.0/weights":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""));
  const SafetensorsFile file(folder / "m.st");

  CHECK_THAT(error_of([&] { (void)file.at("layer.0/weight"); }),
             Contains("m.st' has no tensor 'layer.0/weight' (did you mean 'layer.0/weights'?); it holds 1 tensors"));
}

TEST_CASE("a file cut short after it was opened gives an error when it is read, not a signal", "[checkpoint]") {
  const TemporaryFolder folder;
  std::vector<float> values(100'000);
  std::iota(values.begin(), values.end(), 0.0F);
  write_safetensors(folder / "m.st",
                    std::vector<Tensor>{{{"a", DType::f32, {100'000}}, std::as_bytes(std::span<const float>(values))}},
                    {});
  const SafetensorsFile file(folder / "m.st");
  std::vector<float> found(1000);
  const std::span<std::byte> to = std::as_writable_bytes(std::span(found));

  file.read(file.at("a"), 4 * 99'000, to);
  CHECK(found.back() == 99'999);
  std::filesystem::resize_file(folder / "m.st", 50'000);

  CHECK_THAT(error_of([&] { file.read(file.at("a"), 4 * 99'000, to); }),
             Contains("m.st' was cut short while this job was using it"));
  CHECK_THAT(error_of([&] { file.require_unchanged(); }), Contains("and has 50000 now"));
}

TEST_CASE("the fingerprint of weights covers the header and a page of each tensor", "[checkpoint]") {
  const TemporaryFolder folder;
  // The large tensors fill more pages than are hashed at even distances; the small ones lie between them.
  std::vector<std::vector<std::byte>> values;
  for (std::size_t i = 0; i < 200; ++i) {
    values.emplace_back(i % 10 == 0 ? 40 : 12'288);
  }
  std::set<std::string> seen;
  const auto is_new = [&](const Metadata& metadata = {}) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensors.push_back({{std::to_string(i), DType::u8, {static_cast<std::int64_t>(values[i].size())}}, values[i]});
    }
    write_safetensors(folder / "m.st", tensors, metadata);
    return seen.insert(SafetensorsFile(folder / "m.st", hashed_of_weights).fingerprint()).second;
  };
  CHECK(is_new());
  CHECK(!is_new());
  for (const std::size_t i :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{55}, std::size_t{100}, std::size_t{199}}) {
    INFO("tensor " << i);
    values[i][values[i].size() / 2] = std::byte{1};
    CHECK(is_new());
  }
  values[100].back() = std::byte{1};
  CHECK(is_new());
  CHECK(is_new({{"model", "a"}}));
  CHECK(is_new({{"model", "b"}}));
}

TEST_CASE("a written file is read back", "[checkpoint]") {
  const TemporaryFolder folder;
  const double value = 0.1;
  const Metadata metadata = {{"quote\"\\\n", "línea\x01/"}};

  write_safetensors(folder / "m.st",
                    std::vector<Tensor>{{{"näme \"1\"", DType::f64, {1}}, std::as_bytes(std::span(&value, 1))}},
                    metadata);

  const SafetensorsFile file(folder / "m.st");
  CHECK(file.metadata() == metadata);
  CHECK(std::memcmp(file.at("näme \"1\"").bytes.data(), &value, 8) == 0);
}

TEST_CASE("every dtype has a name and a size", "[checkpoint]") {
  const std::pair<const char*, std::size_t> expected[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8}};
  for (const auto& [name, bytes] : expected) {
    INFO(name);
    const auto dtype = dtype_of(name);
    REQUIRE(dtype.has_value());
    CHECK(element_bytes(*dtype) == bytes);
    CHECK(to_string(*dtype) == std::string(name));
  }
  CHECK_FALSE(dtype_of("f32").has_value());
}

TEST_CASE("an empty tensor may share its offset", "[checkpoint]") {
  const SafetensorsContents contents = parse(file_of(R"({"full":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                                     R"("none":{"dtype":"F32","shape":[4,0],"data_offsets":[0,0]}})",
                                                     "xy"));

  CHECK(contents.tensors[0].info.name == "none");
  CHECK(contents.tensors[1].bytes.size() == 2);
}

TEST_CASE("each fault of a file is refused with its own words", "[checkpoint]") {
  struct Fault {
    std::string file;
    const char* message;
  };
  const Fault faults[] = {
      {"", "it has 0 bytes; the length of the header alone takes 8"},
      {"1234567", "it has 7 bytes"},
      {length_text(100'000'001), "its header would have 100000001 bytes; at most 100000000 are allowed"},
      {length_text(UINT64_MAX) + "{}", "its header would have 18446744073709551615 bytes"},
      {length_text(3) + "{}", "its header of 3 bytes reaches past the end: 2 are there"},
      {length_text(100'000'000) + "{}", "reaches past the end"},
      {file_of("", ""), "its header does not start with '{'"},
      {file_of("[]", ""), "its header does not start with '{'"},
      {file_of("{\"\xFF\":0}", ""), "its header is not valid UTF-8 at byte 2"},
      {file_of("{\"a\"}", ""), "cannot read the header of 'm.st': not valid JSON at byte 4"},
      {file_of("{", ""), "not valid JSON at byte 1: incomplete JSON"},
      {file_of("{} x", ""), "not valid JSON at byte 3"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           ""),
       "the header of 'm.st': the key \"a\" occurs twice"},
      {file_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})", ""),
       "the key \"dtype\" occurs twice"},
      {file_of(R"({"\u0061":1,"a":2})", ""), "the key \"a\" occurs twice"},
      {file_of(R"({"":1,"":2})", ""), "the key \"\" occurs twice"},
      {file_of(R"({"__metadata__":[]})", ""), "__metadata__ is not an object"},
      {file_of(R"({"__metadata__":{"step":7}})", ""), "__metadata__ \"step\" is not a string"},
      {file_of(R"({"a":3})", ""), "tensor 'a': its entry is not an object"},
      {file_of(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", ""), "tensor 'a': it has no \"dtype\""},
      {file_of(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", ""), "tensor 'a': it has no \"shape\""},
      {file_of(R"({"a":{"dtype":"U8","shape":[0]}})", ""), "tensor 'a': it has no \"data_offsets\""},
      {file_of(R"({"a":{"dtype":8,"shape":[0],"data_offsets":[0,0]}})", ""), "tensor 'a': its dtype is not a string"},
      {file_of(R"({"a":{"dtype":"F31","shape":[0],"data_offsets":[0,0]}})", ""), "its dtype \"F31\" is unknown"},
      {file_of(R"({"a":{"dtype":"U8","shape":3,"data_offsets":[0,0]}})", ""), "its shape is not an array"},
      {file_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", ""), "its shape holds -1"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", "x"), "its shape holds 1E0"},
      {file_of(R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", "x"), "its shape holds \"1\""},
      {file_of(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})", ""),
       "its shape holds 18446744073709551615"},
      {file_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
       "the size of its shape [4294967296, 4294967296] overflows"},
      {file_of(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", ""), "overflows"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "x"), "its data_offsets are [0]"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x"), "its data_offsets are [1, 0]"},
      {file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "xxxx"),
       "shape [2] of F32 takes 8 bytes, its data_offsets give it 4"},
      {file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"),
       "tensor 'a': it begins at byte 1, but the header ends at 0"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "xxx"),
       "tensor 'b': it begins at byte 1, but a ends at 2"},
      {file_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
           "xxxxx"),
       "tensor 'b': it begins at byte 3, but a ends at 2"},
      {file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "x"),
       "its tensors end at byte 2 of the data, the file has 1: it is cut short"},
      {file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xxx"),
       "its tensors end at byte 2 of the data, the file has 3: something was appended"},
  };
  for (const Fault& fault : faults) {
    INFO(fault.message);
    CHECK_THAT(error_in(fault.file), StartsWith("2: cannot read ") && Contains(fault.message));
  }
}

TEST_CASE("every cut of a sound file is refused", "[checkpoint]") {
  const std::string file = file_of(two_tensors, "aaaabbbbbb");
  CHECK(error_in(file) == "nothing");
  for (std::size_t size = 0; size < file.size(); ++size) {
    INFO(size);
    CHECK_THAT(error_in(std::string_view(file).substr(0, size)), StartsWith("2: cannot read 'm.st' as safetensors"));
  }
}

TEST_CASE("JSON that nests without end is refused", "[checkpoint]") {
  CHECK_THAT(error_in(file_of("{\"a\":" + std::string(100000, '['), "")), Contains("not valid JSON"));
}
