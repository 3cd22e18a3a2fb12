// GGUF files: the numbers of every type of block, split files, and one clear error for each file that is damaged.

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/gguf_model.h"
#include "core/files/gguf.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

template <typename Number>
std::string number_bytes(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

/// A string of GGUF.
std::string gguf_text(std::string_view text) { return number_bytes<std::uint64_t>(text.size()) + std::string(text); }

/// Metadata of a GGUF file: a key and its type, and the value's bytes.
std::string gguf_value(std::string_view key, std::uint32_t type, const std::string& bytes) {
  return gguf_text(key) + number_bytes(type) + bytes;
}
std::string gguf_value(std::string_view key, std::string_view text) { return gguf_value(key, 8, gguf_text(text)); }
std::string gguf_value(std::string_view key, std::uint32_t number) { return gguf_value(key, 4, number_bytes(number)); }

/// An entry of the table of tensors. `shape`: in GGUF's order, the last dimension first.
std::string gguf_tensor(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                        std::uint64_t offset) {
  std::string entry = gguf_text(name) + number_bytes(static_cast<std::uint32_t>(shape.size()));
  for (const std::uint64_t size : shape) {
    entry += number_bytes(size);
  }
  return entry + number_bytes(type) + number_bytes(offset);
}

std::string gguf_file(const std::vector<std::string>& values, const std::vector<std::string>& tensors,
                      const std::string& blocks, std::uint32_t version = 3) {
  std::string file = "GGUF" + number_bytes(version) + number_bytes<std::uint64_t>(tensors.size()) +
                     number_bytes<std::uint64_t>(values.size());
  for (const std::vector<std::string>* list : {&values, &tensors}) {
    for (const std::string& entry : *list) {
      file += entry;
    }
  }
  file.resize((file.size() + 31) / 32 * 32);
  return file + blocks;
}

const std::filesystem::path gguf_fixtures = SHARDRUN_FIXTURES;

const std::string architecture = gguf_value("general.architecture", "other");

std::string refusal_in(const std::string& file) {
  return error_of([&] {
    (void)files::parse_gguf(
        file.size(),
        [&](std::size_t offset, std::span<std::byte> to) { std::memcpy(to.data(), file.data() + offset, to.size()); },
        "m.gguf");
  });
}

std::string floats(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::vector<float> read_floats(const TensorSource& source, std::size_t tensor, std::int64_t first, std::size_t count) {
  std::vector<float> numbers(count);
  source.read(tensor, first, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

}  // namespace

TEST_CASE("gguf: blocks of every type have the bits that gguf-py makes of them", "[checkpoint][gguf]") {
  const GgufModel model(gguf_fixtures / "blocks.gguf");
  const std::string expected = read_file(gguf_fixtures / "blocks.npy").substr(128);
  const std::vector<TensorInfo>& tensors = model.source().tensors;
  REQUIRE(tensors.size() == 11);
  const std::size_t each = expected.size() / tensors.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO(tensors[i].name);
    const auto number = static_cast<std::size_t>(std::stoul(tensors[i].name));
    std::vector<float> wanted(each / sizeof(float));
    std::memcpy(wanted.data(), expected.data() + number * each, each);
    const std::vector<float> found = read_floats(model.source(), i, 0, wanted.size());
    CHECK(std::memcmp(found.data(), wanted.data(), each) == 0);
    // A part that begins and ends within blocks.
    const std::vector<float> part = read_floats(model.source(), i, 7, 300);
    CHECK(std::memcmp(part.data(), wanted.data() + 7, part.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("gguf: metadata of an architecture that is not known is given on as it is", "[checkpoint][gguf]") {
  const TemporaryFolder folder;
  write_file(
      folder / "m.gguf",
      gguf_file({architecture, gguf_value("other.depth", 3U), gguf_value("else.depth", 4U),
                 gguf_value("other.ratio", 6, number_bytes(1e-5F)), gguf_value("other.on", 7, std::string(1, '\1')),
                 gguf_value("other.list", 9,
                            number_bytes(5U) + number_bytes<std::uint64_t>(2) + number_bytes(-1) + number_bytes(2))},
                {gguf_tensor("w", {3, 2}, 0, 0)}, floats({1, 2, 3, 4, 5, 6})));
  const GgufModel model(folder / "m.gguf");
  const std::vector<sdk::ConfigValue> expected = {
      {SR_CONFIG_TEXT, "architectures.0", "other"}, {SR_CONFIG_NUMBER, "other.depth", "3"},
      {SR_CONFIG_NUMBER, "other.list.0", "-1"},     {SR_CONFIG_NUMBER, "other.list.1", "2"},
      {SR_CONFIG_BOOLEAN, "other.on", "true"},      {SR_CONFIG_NUMBER, "other.ratio", "1e-05"}};
  CHECK(model.config() == expected);
  REQUIRE(model.source().tensors.size() == 1);
  CHECK(model.source().tensors[0] == TensorInfo{"w", DType::f32, {2, 3}});
  CHECK(read_floats(model.source(), 0, 2, 3) == std::vector<float>{3, 4, 5});
}

TEST_CASE("gguf: the parts of a split file are one model", "[checkpoint][gguf]") {
  const TemporaryFolder folder;
  const auto part = [&](std::uint32_t number, const std::string& tensor, float value, std::uint32_t parts = 2) {
    std::vector<std::string> values = {gguf_value("split.no", number), gguf_value("split.count", parts)};
    if (number == 0) {
      values.push_back(architecture);
      values.push_back(gguf_value("split.tensors.count", 2U));
    }
    write_file(folder / fmt::format("m-{:05}-of-00002.gguf", number + 1),
               gguf_file(values, {gguf_tensor(tensor, {1}, 0, 0)}, floats({value})));
  };
  const auto refusal = [&](const char* name) { return error_of([&] { GgufModel(folder / name); }); };
  part(0, "a", 5);
  CHECK_THAT(refusal("m-00001-of-00002.gguf"), Contains("m-00002-of-00002.gguf"));
  part(1, "b", 6);
  const GgufModel model(folder / "m-00001-of-00002.gguf");
  REQUIRE(model.source().tensors.size() == 2);
  CHECK(read_floats(model.source(), 0, 0, 1)[0] == 5);
  CHECK(read_floats(model.source(), 1, 0, 1)[0] == 6);
  CHECK_THAT(refusal("m-00002-of-00002.gguf"), Contains("it is part 2 of 2: name the first"));
  part(1, "a", 6);
  CHECK_THAT(refusal("m-00001-of-00002.gguf"), Contains("the tensor 'a' is in another part, too"));
  part(1, "b", 6, 3);
  CHECK_THAT(refusal("m-00001-of-00002.gguf"), Contains("does not say that it is part 2 of 2"));
}

TEST_CASE("gguf: the fingerprint covers a page of each tensor", "[checkpoint][gguf]") {
  constexpr std::size_t each =
      8192;  // bytes of a tensor, of which 200 have more pages than are hashed at even distances
  constexpr std::size_t count = 200;
  std::vector<std::string> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back(gguf_tensor(fmt::format("t{}", i), {each / 4}, 0, i * each));
  }
  std::string file = gguf_file({architecture}, tensors, std::string(count * each, '\0'));
  const std::size_t first = file.size() - count * each;
  const TemporaryFolder folder;
  std::set<std::string> seen;
  const auto is_new = [&] {
    write_file(folder / "m.gguf", file);
    return seen.insert(GgufModel(folder / "m.gguf").fingerprint()).second;
  };
  CHECK(is_new());
  CHECK(!is_new());
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{101}, count - 1}) {
    INFO("tensor " << i);
    file[first + i * each + each / 2] = '\1';
    CHECK(is_new());
  }
}

TEST_CASE("gguf: damaged files are refused with what is wrong", "[checkpoint][gguf]") {
  const std::string one = gguf_tensor("a", {32}, 2, 0);
  const std::string block(18, '\0');
  const std::string sound = gguf_file({architecture}, {one}, block);
  CHECK(refusal_in(sound) == "nothing");
  for (std::size_t size = 0; size < sound.size(); ++size) {
    INFO(size);
    CHECK_THAT(refusal_in(sound.substr(0, size)), Contains("cannot read 'm.gguf' as GGUF"));
  }
  const auto with_value = [&](const std::string& value) { return refusal_in(gguf_file({value}, {}, "")); };
  const auto with_tensor = [&](const std::string& tensor) { return refusal_in(gguf_file({}, {tensor}, block)); };
  const auto counts = [&](std::uint64_t tensors, std::uint64_t values) {
    return "GGUF" + number_bytes(3U) + number_bytes(tensors) + number_bytes(values) + std::string(100, '\0');
  };
  CHECK_THAT(refusal_in("GGML" + sound.substr(4)), Contains("it begins with 'GGML', expected 'GGUF'"));
  CHECK_THAT(refusal_in(gguf_file({}, {}, "", 1)), Contains("of version 1, expected 2 or 3"));
  CHECK(refusal_in(gguf_file({}, {}, "", 2)) == "nothing");
  CHECK_THAT(refusal_in(gguf_file({}, {}, "", 0x03000000)), Contains("big-endian"));
  CHECK_THAT(refusal_in(counts(UINT64_MAX, 0)), Contains("18446744073709551615 tensors cannot be in the 100 bytes"));
  CHECK_THAT(refusal_in(counts(0, 9)), Contains("9 values of metadata cannot be in the 100 bytes"));
  CHECK_THAT(with_value(number_bytes<std::uint64_t>(1U << 30U) + std::string(8, '\0')),
             Contains("the key of value 0 would have 1073741824 bytes"));
  CHECK_THAT(with_value(gguf_value("k", 8, number_bytes<std::uint64_t>(1000))),
             Contains("the value of 'k' would take 1000 bytes") && Contains("it is cut short"));
  CHECK_THAT(with_value(gguf_value("k", 13, "")), Contains("the value of 'k' has the type 13, expected 0 to 12"));
  CHECK_THAT(with_value(gguf_value("k", 7, "\2")), Contains("the value of 'k' is 2, expected 0 or 1"));
  CHECK_THAT(with_value(gguf_value("k", 10, number_bytes(UINT64_MAX))), Contains("expected less than 2^63"));
  CHECK_THAT(with_value(gguf_value("k", 9, number_bytes(9U) + number_bytes<std::uint64_t>(1) + std::string(12, '\0'))),
             Contains("'k' is an array of arrays, which are not read"));
  CHECK_THAT(with_value(gguf_value("k", 9, number_bytes(4U) + number_bytes(UINT64_MAX / 4))),
             Contains("elements of the value of 'k' cannot be in the"));
  CHECK_THAT(with_value(gguf_value("k", "\xFF")), Contains("the value of 'k' is not UTF-8"));
  CHECK_THAT(with_value(gguf_value("general.alignment", 24U)),
             Contains("general.alignment is 24, expected a power of 2"));
  CHECK_THAT(refusal_in(gguf_file({architecture, architecture}, {}, "")),
             Contains("the key 'general.architecture' occurs twice"));
  CHECK_THAT(refusal_in(gguf_file({}, {one, gguf_tensor("a", {32}, 2, 32)}, std::string(64, '\0'))),
             Contains("the tensor 'a' occurs twice"));
  CHECK_THAT(
      refusal_in(gguf_file({}, {gguf_tensor("a", {32}, 0, 0), gguf_tensor("b", {32}, 2, 32)}, std::string(128, '\0'))),
      Contains("the tensors 'a' and 'b' overlap"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {256}, 10, 0)), Contains("is of type Q2_K; read are F32, F16, Q4_0"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {256}, 99, 0)), Contains("is of type 99, which is none of the format"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {33}, 2, 0)),
             Contains("rows of 33 elements, expected a multiple of 32, the elements of a block of Q4_0"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {1, 1, 1, 1, 1}, 0, 0)), Contains("has 5 dimensions, expected at most 4"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {0}, 0, 0)), Contains("its dimension 0 is 0"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {1U << 31U, 1U << 31U, 1U << 31U}, 0, 0)), Contains("its dimension 1 is"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {32}, 2, 8)),
             Contains("begins at byte 8 of the blocks, expected a multiple"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {32}, 2, UINT64_MAX - 31)), Contains("it is cut short"));
  CHECK_THAT(with_tensor(gguf_tensor("a", {1U << 20U}, 2, 0)), Contains("blocks on, which have 18 bytes"));
}

TEST_CASE("gguf: what would silently change a known model is refused", "[checkpoint][gguf]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::string>& values, const std::vector<std::string>& names = {}) {
    std::vector<std::string> all = {gguf_value("general.architecture", "llama"),
                                    gguf_value("llama.attention.head_count", 1U),
                                    gguf_value("llama.embedding_length", 4U)};
    all.insert(all.end(), values.begin(), values.end());
    std::vector<std::string> tensors;
    for (const std::string& name : names) {
      tensors.push_back(gguf_tensor(name, {2}, 0, tensors.size() * 32));
    }
    write_file(folder / "m.gguf", gguf_file(all, tensors, std::string(tensors.size() * 32, '\0')));
    return error_of([&] { GgufModel(folder / "m.gguf"); });
  };
  const auto scaling = [](std::string_view type) { return gguf_value("llama.rope.scaling.type", type); };
  const auto attention = [](float factor) {
    return gguf_value("llama.rope.scaling.attn_factor", 6, number_bytes(factor));
  };
  const std::string factor = gguf_value("llama.rope.scaling.factor", 6, number_bytes(4.0F));
  CHECK(refusal({scaling("linear"), factor, attention(1)}, {"output_norm.weight", "output.weight"}) == "nothing");
  CHECK(refusal({scaling("yarn"), factor, attention(2)}) == "nothing");
  CHECK_THAT(refusal({gguf_value("llama.rope.scaling.type", 3U), factor}),
             Contains("the value of 'llama.rope.scaling.type' should be a text"));
  CHECK_THAT(refusal({scaling("linear"), factor, attention(2)}),
             Contains("llama.rope.scaling.attn_factor = 2, and llama.rope.scaling.type is linear"));
  CHECK_THAT(refusal({attention(2)}), Contains("llama.rope.scaling.type is none: only yarn's is read"));
  CHECK_THAT(refusal({attention(2)}, {"rope_freqs.weight"}), Contains("only yarn's is read"));
  CHECK_THAT(refusal({}, {"output_norm.weight", "model.norm.weight"}),
             Contains("the tensors 'output_norm.weight' and 'model.norm.weight' are both the model's "
                      "model.norm.weight"));
  CHECK_THAT(refusal({}, {"blk.\x1b.attn_q.weight"}),
             Contains("is [2], expected rows of heads of 4") && !Contains("\x1b"));
}
