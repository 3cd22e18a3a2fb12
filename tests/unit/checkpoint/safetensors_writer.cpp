#include <cstring>

#include "core/checkpoint/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("the bytes equal what the format's own library writes", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::string_view header =
      R"({"__metadata__":{"format":"pt"},"wide":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},)"
      R"("b":{"dtype":"F32","shape":[],"data_offsets":[16,20]},)"
      R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[20,26]},)"
      R"("none":{"dtype":"U8","shape":[0,4],"data_offsets":[26,26]}})";
  // 316 characters: 4 spaces pad them to 320 = 0x140.
  REQUIRE(header.size() == 316);

  write_safetensors(folder / "model.safetensors",
                    std::vector<Tensor>{{{"b", DType::f32, {}}, bytes_of("bbbb")},
                                        {{"none", DType::u8, {0, 4}}, {}},
                                        {{"half", DType::bf16, {3}}, bytes_of("hhhhhh")},
                                        {{"wide", DType::i64, {1}}, bytes_of("wwwwwwww")},
                                        {{"a", DType::f32, {2, 1}}, bytes_of("aaaaAAAA")}},
                    {{"format", "pt"}});

  std::string expected("\x40\x01\0\0\0\0\0\0", 8);
  expected += header;
  expected += "    ";
  expected +=
      "wwwwwwww"
      "aaaaAAAA"
      "bbbb"
      "hhhhhh";
  CHECK(read_file(folder / "model.safetensors") == expected);
}

TEST_CASE("a file without tensors or metadata is a header", "[checkpoint]") {
  const TemporaryFolder folder;

  write_safetensors(folder / "empty", {}, {});

  CHECK(read_file(folder / "empty") == std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST_CASE("the layout says where every tensor goes and how large the file is", "[checkpoint]") {
  const TensorFileLayout layout = lay_out({{"a", DType::u8, {3}}, {"b", DType::f64, {2}}}, {});

  CHECK(layout.header.size() % 8 == 0);
  CHECK(layout.tensors[0].name == "b");
  CHECK(layout.offsets == std::vector<std::uint64_t>{layout.header.size(), layout.header.size() + 16});
  CHECK(layout.file_bytes == layout.header.size() + 19);
}

TEST_CASE("tensors come in pieces and in any order", "[checkpoint]") {
  const TemporaryFolder folder;
  TensorFileWriter writer(folder / "file", lay_out({{"a", DType::u8, {4}}, {"b", DType::u8, {4}}}, {}));

  writer.write("b", 2, bytes_of("34"));
  writer.write("a", 0, bytes_of("abcd"));
  writer.write("b", 0, bytes_of("12"));
  CHECK_FALSE(std::filesystem::exists(folder / "file"));
  writer.commit();

  const SafetensorsFile file(folder / "file");
  CHECK(std::memcmp(file.at("a").bytes.data(), "abcd", 4) == 0);
  CHECK(std::memcmp(file.at("b").bytes.data(), "1234", 4) == 0);
}

TEST_CASE("a file that lacks bytes is not committed", "[checkpoint]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  {
    TensorFileWriter writer(folder / "file", lay_out({{"a", DType::u8, {4}}}, {}));
    writer.write("a", 1, bytes_of("bc"));

    CHECK_THAT(error_of([&] { writer.commit(); }), Contains("tensor 'a' lacks 2 of its 4 bytes"));
    CHECK_THAT(error_of([&] { writer.write("x", 0, {}); }), Contains("has no tensor 'x'"));
    CHECK_THAT(error_of([&] { writer.write("a", 3, bytes_of("de")); }),
               Contains("2 bytes at byte 3 do not lie within tensor 'a', which has 4"));
    CHECK_THAT(error_of([&] { writer.write("a", UINT64_MAX, bytes_of("d")); }), Contains("do not lie within"));
  }
  CHECK(read_file(folder / "file") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("names and sizes that readers would refuse are refused", "[checkpoint]") {
  const auto error = [](std::vector<TensorInfo> tensors) {
    return error_of([&] { (void)lay_out(std::move(tensors), {}); });
  };

  CHECK_THAT(error({{"a", DType::u8, {1}}, {"a", DType::f32, {1}}}),
             Contains("'a' in a safetensors file: there are two"));
  CHECK_THAT(error({{"__metadata__", DType::u8, {1}}}), Contains("the name is the format's own"));
  CHECK_THAT(error({{"\xFF", DType::u8, {1}}}), Contains("its name is not UTF-8"));
  CHECK_THAT(error({{"a", DType::f32, {INT64_MAX, 2}}}), Contains("its size overflows"));
  CHECK_THAT(error({{"a", DType::f32, {-1}}}), Contains("its size overflows"));
  CHECK_THAT(error({{"a", DType::u8, {INT64_MAX}}, {"b", DType::u8, {INT64_MAX}}}),
             Contains("the file's size overflows"));
  CHECK_THAT(error_of([] { (void)lay_out({}, {{"key", "\x80"}}); }), Contains("the metadata is not UTF-8"));
  CHECK_THAT(error_of([] {
               (void)lay_out({}, {{"key", std::string(max_header_bytes, 'x')}});
             }),
             Contains("readers take at most 100000000"));
}
