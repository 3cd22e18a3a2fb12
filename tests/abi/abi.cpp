#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "tests/abi/layout.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::test;

namespace {

const std::filesystem::path abi_folder = SHARDRUN_SOURCE "/tests/abi";
const std::filesystem::path header_folder = SHARDRUN_SOURCE "/plugins/include/shardrun";

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex compiled(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), compiled), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

}  // namespace

TEST_CASE("fields and constants of every released ABI keep their places and values", "[abi]") {
  const AbiLayout now = compiled_layout();
  std::size_t releases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(abi_folder)) {
    if (!entry.path().filename().string().starts_with("golden-")) {
      continue;
    }
    ++releases;
    INFO(entry.path().filename().string());
    const AbiLayout golden = parse_layout(read_file(entry.path()));
    for (const auto& [name, value] : golden.constants) {
      INFO(name);
      REQUIRE(now.constants.contains(name));
      CHECK((now.constants.at(name) == value || name == "SR_ABI_MINOR"));
    }
    for (const auto& [name, fields] : golden.structs) {
      INFO(name);
      REQUIRE(now.structs.contains(name));
      const std::vector<FieldLayout>& current = now.structs.at(name);
      REQUIRE(current.size() >= fields.size());
      for (std::size_t i = 0; i < fields.size(); ++i) {
        INFO("field " << i << " was " << fields[i].name << ' ' << fields[i].type << " and is " << current[i].name << ' '
                      << current[i].type);
        CHECK(current[i] == fields[i]);
      }
    }
  }
  CHECK(releases >= 1);
}

TEST_CASE("a struct's frozen size ends after the last field it had when it was released", "[abi]") {
  std::size_t sizes = 0;
  for (const std::string release : {"1.0", "1.7"}) {
    const AbiLayout golden = parse_layout(read_file(abi_folder / ("golden-" + release + ".txt")));
    for (const auto& [name, fields] : golden.structs) {
      std::string constant = name + "_SIZE_" + release.substr(0, 1) + "_" + release.substr(2);
      std::ranges::transform(constant, constant.begin(),
                             [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      INFO(constant);
      CHECK((release != "1.0" || golden.constants.contains(constant)));
      if (golden.constants.contains(constant)) {
        CHECK(golden.constants.at(constant) == std::to_string(fields.back().offset + fields.back().size));
        ++sizes;
      }
    }
  }
  CHECK(sizes > 30);
}

TEST_CASE("every struct begins with its size and has no holes", "[abi]") {
  for (const auto& [name, fields] : compiled_layout().structs) {
    INFO(name);
    CHECK(fields.front() == FieldLayout{"struct_size", 0, 4, "u32"});
    std::size_t end = 0;
    for (const FieldLayout& field : fields) {
      INFO(field.name);
      CHECK(field.offset == end);
      end = field.offset + field.size;
    }
  }
}

TEST_CASE("the compiled layout lists every struct and constant of the headers", "[abi]") {
  const AbiLayout now = compiled_layout();
  std::size_t structs = 0;
  std::size_t constants = 0;
  for (const auto& entry : std::filesystem::directory_iterator(header_folder)) {
    if (entry.path().extension() != ".h") {
      continue;
    }
    const std::string text = read_file(entry.path());
    for (const std::string& name : matches(text, R"(typedef struct (sr_\w+))")) {
      INFO(name);
      CHECK(now.structs.contains(name));
      ++structs;
    }
    for (const std::string& name : matches(text, R"(#define (SR_\w+) U?INT\d+_C)")) {
      INFO(name);
      CHECK(now.constants.contains(name));
      ++constants;
    }
  }
  CHECK(structs == now.structs.size());
  CHECK(constants == now.constants.size());
}

TEST_CASE("the golden text can be read back", "[abi]") {
  const AbiLayout now = compiled_layout();

  const AbiLayout read = parse_layout(to_string(now));

  CHECK(read.structs == now.structs);
  CHECK(read.constants == now.constants);
}
