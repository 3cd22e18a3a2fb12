#include "core/data/npy.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

NpyHeader parse(std::string_view file) { return parse_npy(std::as_bytes(std::span(file)), file.size(), "x.npy"); }

std::string error_in(std::string_view file) {
  return error_of([&] { (void)parse(file); });
}

std::string error_in_header(std::string_view dictionary) { return error_in(npy_file(dictionary, "")); }

template <typename Number>
std::vector<float> floats_of(const char* descr, std::initializer_list<Number> values) {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file(descr, "(3,)", values));
  const NpyArray array(shardrun::files::SteadyFile(folder / "x.npy"));
  std::vector<float> floats(2);
  array.read(1, floats);
  return floats;
}

}  // namespace

TEST_CASE("files that numpy.save writes are read", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2, 3)", {1, 2, 3, 4, 5, 6.5F}));

  const NpyArray array(shardrun::files::SteadyFile(folder / "x.npy"));
  std::vector<float> values(6);
  array.read(0, values);

  CHECK(array.type() == NpyType::f32);
  CHECK(array.shape() == std::vector<std::int64_t>{2, 3});
  CHECK(array.elements() == 6);
  CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6.5F});
}

TEST_CASE("every type is converted", "[data]") {
  const std::vector<float> expected = {2, 3};
  CHECK(floats_of<double>("<f8", {1, 2, 3}) == expected);
  CHECK(floats_of<float>("<f4", {1, 2, 3}) == expected);
  CHECK(floats_of<std::int64_t>("<i8", {1, 2, 3}) == expected);
  CHECK(floats_of<std::int32_t>("<i4", {1, 2, 3}) == expected);
  CHECK(floats_of<std::int16_t>("<i2", {1, 2, 3}) == expected);
  CHECK(floats_of<std::int8_t>("|i1", {1, 2, 3}) == expected);
  CHECK(floats_of<std::uint64_t>("<u8", {1, 2, 3}) == expected);
  CHECK(floats_of<std::uint32_t>("<u4", {1, 2, 3}) == expected);
  CHECK(floats_of<std::uint16_t>("<u2", {1, 2, 3}) == expected);
  CHECK(floats_of<std::uint8_t>("|u1", {1, 2, 3}) == expected);
  CHECK(floats_of<std::uint8_t>("|b1", {1, 0, 1}) == std::vector<float>{0, 1});
  CHECK(floats_of<std::int8_t>("|i1", {0, -1, -2}) == std::vector<float>{-1, -2});
}

TEST_CASE("scalars, empty arrays and the later versions are read", "[data]") {
  CHECK(parse(npy_file<double>("<f8", "()", {1})).shape.empty());
  CHECK(parse(npy_file<double>("<f8", "(0, 5)", {})).elements == 0);

  const std::string dictionary = "{\"shape\": (1,), 'fortran_order': False, 'descr': '|u1'}";
  for (const char version : {'\x02', '\x03'}) {
    std::string file("\x93NUMPY", 6);
    file += version;
    file += '\0';
    file += static_cast<char>(dictionary.size());
    file += std::string(3, '\0') + dictionary + "x";

    const NpyHeader header = parse(file);

    CHECK(header.shape == std::vector<std::int64_t>{1});
    CHECK(header.type == NpyType::u8);
    CHECK(header.data_offset == 12 + dictionary.size());
  }
}

TEST_CASE("files that are not arrays are refused", "[data]") {
  CHECK_THAT(error_in(""), StartsWith("2: cannot read array 'x.npy': it does not start as a .npy file does"));
  CHECK_THAT(error_in("PK\x03\x04 a .npz file"), Contains("it is a zip archive of arrays"));
  CHECK_THAT(error_in("\x1f\x8b\x08 packed"), Contains("it is a gzip file and does not start as a .npy file does"));
  CHECK_THAT(error_in("\x93NUMPY"), Contains("cut short: 6 bytes do not hold a header"));
  CHECK_THAT(error_in(std::string("\x93NUMPY\x02\x00\x10\x00", 10)),
             Contains("cut short: 10 bytes do not hold a header"));
  CHECK_THAT(error_in(std::string("\x93NUMPY\x04\x00\x10\x00", 10)), Contains("its format version is 4.0"));
  CHECK_THAT(error_in(std::string("\x93NUMPY\x01\x00\x10\x00{}", 12)),
             Contains("its header has 16 bytes, 2 are there"));
}

TEST_CASE("a file with fewer or more values than its shape is refused", "[data]") {
  CHECK_THAT(error_in(npy_file<float>("<f4", "(2, 3)", {1, 2, 3, 4, 5})),
             Contains("shape (2, 3) of float32 needs 24 bytes, the file has 20: it is cut short"));
  CHECK_THAT(error_in(npy_file<float>("<f4", "(2,)", {1, 2, 3})),
             Contains("needs 8 bytes, the file has 12: it is not"));
  CHECK_THAT(error_in(npy_file<float>("<f4", "(4294967296, 4294967296)", {})),
             Contains("more elements than 64 bits count"));
  CHECK_THAT(error_in(npy_file<float>("<f4", "(9223372036854775807,)", {})), Contains("cut short"));
}

TEST_CASE("types and orders that are not supported are refused with what to save instead", "[data]") {
  CHECK_THAT(error_in_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
             Contains("it holds Python objects (dtype object); save numbers"));
  CHECK_THAT(error_in_header("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }"),
             Contains("big-endian (dtype '>f4'); save array.astype('<f4')"));
  CHECK_THAT(error_in_header("{'descr': '>i8', 'fortran_order': False, 'shape': (1,), }"),
             Contains("big-endian (dtype '>i8'); save array.astype('<i8')"));
  CHECK_THAT(error_in_header("{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }"),
             Contains("its dtype '>c8' is not supported"));
  CHECK_THAT(error_in_header("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }"),
             Contains("its dtype '<c8' is not supported"));
  CHECK_THAT(error_in_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"),
             Contains("structured"));
  CHECK_THAT(error_in_header("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }"),
             Contains("it is in Fortran order; save numpy.ascontiguousarray(array)"));
}

TEST_CASE("malformed headers are refused", "[data]") {
  const char* const malformed[] = {
      "",
      "{",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1, }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1), }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1.5,), }",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
      "{'descr': '<f4', 'fortran_order': Falsch, 'shape': (1,), }",
      "{'descr: <f4",
      "{descr: '<f4'}",
      "{'descr' '<f4'}",
  };
  for (const char* dictionary : malformed) {
    INFO(dictionary);
    CHECK_THAT(error_in_header(dictionary), Contains("its header is malformed: expected"));
  }
  CHECK_THAT(error_in_header("{'descr': '<f4', 'fortran_order': False, }"), Contains("lacks one of the keys"));
  CHECK_THAT(error_in_header("{'descr': '<f4', 'descr': '<f4', }"), Contains("the key 'descr', unknown or twice"));
  CHECK_THAT(error_in_header("{'colour': 'red', }"), Contains("the key 'colour', unknown or twice"));
}

TEST_CASE("every cut of a sound file is refused, and none crashes", "[data]") {
  const std::string file = npy_file<float>("<f4", "(2, 3)", {1, 2, 3, 4, 5, 6});
  CHECK(error_in(file) == "nothing");
  for (std::size_t size = 0; size < file.size(); ++size) {
    INFO(size);
    CHECK_THAT(error_in(std::string_view(file).substr(0, size)), StartsWith("2: cannot read array 'x.npy'"));
  }
}
