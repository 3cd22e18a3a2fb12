#include "core/checkpoint/manifest.h"

#include <fmt/format.h>

#include <bit>
#include <boost/json.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/small_checkpoint.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

Manifest whole_manifest() {
  Manifest manifest = small_manifest(20);
  manifest.evaluated = false;
  manifest.run.model += "naïve \"quoted\" \x01\n";
  manifest.files = {{"rank-0.safetensors", 1000, {1, 2}}, {"rank-12.safetensors", 500, {3, 4}}};
  manifest.tensors[0].pieces = {{0, 8, {{0, 0}, {4, 2}, {}}}, {1, 100, {{0, 2}, {4, 1}, {}}}};
  manifest.tensors[1].pieces = {{0, 300, {{0}, {5}, mesh::Interval{0, 3}}}};
  manifest.tensors.push_back({"scalar", TensorRole::hook, DType::u8, {}, {{1, 499, {{}, {}, {}}}}});
  manifest.tensors.push_back({"field", TensorRole::field, DType::f64, {0, 3}, {}});
  return manifest;
}

/// The text with a hash that fits.
std::string sealed(const json::value& edited) {
  json::object fields = edited.as_object();
  fields.erase("xxh3");
  const std::string rest = json::serialize(fields).substr(1) + "\n";
  return "{\"xxh3\":\"" + to_string(files::hash_of(rest)) + "\"," + rest;
}

std::string error_after(const std::function<void(json::value&)>& edit) {
  json::value manifest = json::parse(to_json(whole_manifest()));
  edit(manifest);
  return error_of([&] { static_cast<void>(parse_manifest(sealed(manifest), "m.json")); });
}

/// Calls `visit` with the pointer of each value below a value.
void for_each_below(const json::value& value, const std::string& at,
                    const std::function<void(const std::string&)>& visit) {
  if (const json::object* const object = value.if_object()) {
    for (const auto& [key, below] : *object) {
      visit(at + "/" + std::string(key));
      for_each_below(below, at + "/" + std::string(key), visit);
    }
  } else if (const json::array* const array = value.if_array()) {
    for (std::size_t i = 0; i < array->size(); ++i) {
      for_each_below((*array)[i], at + "/" + std::to_string(i), visit);
    }
  }
}

}  // namespace

TEST_CASE("a manifest is read back unchanged", "[checkpoint]") {
  CHECK(parse_manifest(to_json(whole_manifest()), "m.json") == whole_manifest());
  CHECK(parse_manifest(to_json({}), "m.json") == Manifest{});
  Manifest measured = whole_manifest();
  measured.loss = 0.1;
  measured.val_loss = 1.0 / 3;
  CHECK(parse_manifest(to_json(measured), "m.json") == measured);
  CHECK(file_bytes(whole_manifest()) == 1500);
}

TEST_CASE("a loss is written and read with the same bits", "[checkpoint]") {
  using Limits = std::numeric_limits<double>;
  for (const double loss : {11.288325640302507, 5.2983174324035645, -4.0716873922692676e+100, Limits::max(),
                            Limits::lowest(), Limits::min(), Limits::denorm_min(), 0.0, -0.0, 3.0, 1e22}) {
    Manifest manifest = whole_manifest();
    manifest.loss = loss;
    manifest.val_loss = -loss;
    const Manifest read = parse_manifest(to_json(manifest), "m.json");
    INFO(loss);
    REQUIRE((read.loss && read.val_loss));
    CHECK(std::bit_cast<std::uint64_t>(*read.loss) == std::bit_cast<std::uint64_t>(loss));
    CHECK(std::bit_cast<std::uint64_t>(*read.val_loss) == std::bit_cast<std::uint64_t>(-loss));
  }
}

TEST_CASE("a manifest without a field, or with another kind of value, is refused and the field named", "[checkpoint]") {
  const json::value manifest = json::parse(to_json(whole_manifest()));
  int fields = 0;
  for_each_below(manifest, "", [&](const std::string& pointer) {
    const std::size_t slash = pointer.rfind('/');
    const std::string parent = pointer.substr(0, slash);
    const std::string key = pointer.substr(slash + 1);
    if (key == "xxh3" && parent.empty()) {
      return;
    }
    const bool in_list = key.find_first_not_of("0123456789") == std::string::npos;
    const std::string named = in_list ? "[" + key + "]" : key;
    INFO(pointer);
    if (!in_list && (key != "run" || parent.empty())) {  // a piece need not have a run
      const auto erase = [&](json::value& value) {
        (parent.empty() ? value : value.at_pointer(parent)).as_object().erase(key);
      };
      CHECK_THAT(error_after(erase), StartsWith("2: cannot read 'm.json': ") && Contains("'" + key + "'"));
    }
    const bool may_be_null = key == "loss" || key == "val_loss";
    for (const json::value& wrong :
         may_be_null ? std::vector<json::value>{"much"} : std::vector<json::value>{nullptr, -1}) {
      CHECK_THAT(error_after([&](json::value& value) { value.at_pointer(pointer) = wrong; }),
                 StartsWith("2: cannot read 'm.json': ") && Contains(named));
    }
    ++fields;
  });
  CHECK(fields > 60);
}

TEST_CASE("a loss that is not finite is written as null, and refused where a manifest has one", "[checkpoint]") {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  for (const double loss : {infinite, -infinite, std::numeric_limits<double>::quiet_NaN()}) {
    Manifest manifest = whole_manifest();
    manifest.loss = manifest.val_loss = loss;
    CHECK(parse_manifest(to_json(manifest), "m.json") == whole_manifest());
  }
  struct Written {
    const char* key;
    const char* number;
    const char* shown;
  };
  for (const auto& [key, number, shown] : {Written{"loss", "1e999", "inf"}, Written{"val_loss", "-1e999", "-inf"}}) {
    std::string rest = to_json(whole_manifest());
    rest.erase(0, rest.find(',') + 1);
    const std::string field = fmt::format("\"{}\":", key);
    rest.replace(rest.find(field + "null"), field.size() + 4, field + number);
    const std::string text = fmt::format("{{\"xxh3\":\"{}\",{}", to_string(files::hash_of(rest)), rest);
    CHECK(error_of([&] { static_cast<void>(parse_manifest(text, "m.json")); }) ==
          fmt::format("2: cannot read 'm.json': {}: should be a finite number or null, and is {}", key, shown));
  }
}

TEST_CASE("a manifest that was edited or cut is refused by its hash", "[checkpoint]") {
  const std::string text = to_json(whole_manifest());
  const auto error_in = [](const std::string& edited) {
    return error_of([&] { static_cast<void>(parse_manifest(edited, "m.json")); });
  };
  CHECK(error_in(text) == "nothing");
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    REQUIRE(error_in(flipped) ==
            "2: cannot read 'm.json': its hash: is not that of its bytes: the file was changed or "
            "is incomplete");
    REQUIRE_THAT(error_in(text.substr(0, i)), Contains("its hash"));
  }
  CHECK_THAT(error_in(text + " "), Contains("its hash"));
}

TEST_CASE("a manifest that leads out of its folder, tensors or files is refused", "[checkpoint]") {
  const auto with = [](const char* pointer, const json::value& to) {
    return error_after([&](json::value& value) { value.at_pointer(pointer) = to; });
  };
  for (const char* name : {"../rank-0.safetensors", "/etc/passwd", "rank-0.safetensors/../x", "rank-00.safetensors",
                           "rank--1.safetensors", "rank-+1.safetensors", "rank-.safetensors", "manifest.json", "",
                           "rank-99999999999999999999.safetensors", "rank-1.safetensors "}) {
    INFO(name);
    CHECK_THAT(with("/files/0/name", name), Contains("files[0].name: ") && Contains("is no name of a rank's file"));
  }
  CHECK_THAT(with("/format", 2), Contains("format: is 2, and this version of shardrun reads 1"));
  CHECK_THAT(with("/files/0/xxh3", "00"), Contains("files[0].xxh3: should be 32 digits"));
  CHECK_THAT(with("/tensors/0/pieces/0/origin/0", 1), Contains("tensors[0].pieces[0]: does not lie within tensor 'w'"));
  CHECK_THAT(with("/tensors/0/pieces/0/extent/1", INT64_MAX), Contains("does not lie within tensor 'w'"));
  CHECK_THAT(with("/tensors/0/pieces/0/extent", json::array{4}), Contains("does not lie within tensor 'w'"));
  CHECK_THAT(with("/tensors/1/pieces/0/run", (json::array{0, 6})), Contains("does not lie within tensor 'w/moment'"));
  CHECK_THAT(with("/tensors/1/pieces/0/run", (json::array{3, 2})), Contains("does not lie within tensor 'w/moment'"));
  CHECK_THAT(with("/tensors/1/pieces/0/run", (json::array{3})), Contains("run: should be two numbers"));
  CHECK_THAT(with("/tensors/0/pieces/0/file", 2), Contains("tensors[0].pieces[0].file: there are 2 files"));
  CHECK_THAT(with("/tensors/0/pieces/0/offset", 969), Contains("ends behind the end of rank-0.safetensors"));
  CHECK(with("/tensors/0/pieces/0/offset", 968) == "nothing");
  CHECK_THAT(with("/tensors/0/pieces/0/offset", INT64_MAX), Contains("ends behind the end of rank-0.safetensors"));
  CHECK_THAT(with("/tensors/0/shape", (json::array{INT64_MAX, 3})), Contains("has too many elements"));
  CHECK_THAT(with("/tensors/0/role", "weights"), Contains("tensors[0].role: 'weights' is none"));
  CHECK_THAT(with("/tensors/0/dtype", "F31"), Contains("tensors[0].dtype: is no element type"));
  CHECK_THAT(with("/tensors/1/name", "w"), Contains("tensors: there are two of the name 'w'"));
  CHECK_THAT(with("/files/1/name", "rank-0.safetensors"), Contains("files: there are two of the name"));
}
