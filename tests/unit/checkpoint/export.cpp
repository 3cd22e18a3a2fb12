#include "core/checkpoint/export.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "core/checkpoint/weights.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/small_checkpoint.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::set<std::string> exported_names(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::vector<float> values_of(const TensorSource& source, const char* name) {
  std::vector<float> values;
  stream_as(source, source.index_of(name), DType::f32, [&](std::span<const std::byte> bytes) {
    const std::size_t before = values.size();
    values.resize(before + bytes.size() / sizeof(float));
    std::memcpy(values.data() + before, bytes.data(), bytes.size());
  });
  return values;
}

std::vector<float> counted_from(float first, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("an exported file has whole parameters, and the model and tokenizer they need", "[checkpoint]") {
  const TemporaryFolder folder;
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder / "saved"));
  const Exported exported = export_file(weights_of(checkpoint), folder / "w.safetensors", {});
  CHECK((exported.tensors == 1 && exported.bytes == 48));
  const SafetensorsFile file(folder / "w.safetensors");
  CHECK(file.metadata() == describe_model("[model]\nname = none\n", R"({"kind":"byte"})"));
  REQUIRE(file.tensors().size() == 1);
  CHECK(file.tensors()[0].info == TensorInfo{"w", DType::f32, {4, 3}});
  CHECK(values_of(file, "w") == counted_from(0, 12));

  CHECK(export_file(states_of(checkpoint), folder / "all.safetensors", DType::bf16).tensors == 2);
  const SafetensorsFile all(folder / "all.safetensors");
  CHECK(all.at("w/moment").info == TensorInfo{"w/moment", DType::bf16, {5}});
  CHECK(values_of(all, "w/moment") == counted_from(0, 5));
}

TEST_CASE("a large export is several files and an index that names them", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path to = folder / "hub";
  const auto save = [&](float first, std::uint64_t max_bytes) {
    const OpenCheckpoint checkpoint(save_small_checkpoint(folder / "saved", 20, first));
    return export_folder(states_of(checkpoint), to, {.max_bytes = max_bytes});
  };
  const auto require_values = [&](float first) {
    const TensorFiles files(to);
    CHECK(files.source().tensors.size() == 2);
    CHECK(values_of(files.source(), "w") == counted_from(first, 12));
    CHECK(values_of(files.source(), "w/moment") == counted_from(first, 5));
  };
  const std::set<std::string> sharded = {"config.json", "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors", "model.safetensors.index.json"};

  const Exported first = save(0, 48);
  write_file(to / "config.json", "{}");  // a file of the user's
  CHECK((first.files.size() == 3 && first.files.back() == to / index_name && first.bytes == 68));
  CHECK(exported_names(to) == sharded);
  const boost::json::value index = boost::json::parse(read_file(to / index_name));
  CHECK(index.at("metadata").at("total_size") == 68);
  CHECK(index.at("weight_map") == boost::json::object{{"w", "model-00001-of-00002.safetensors"},
                                                      {"w/moment", "model-00002-of-00002.safetensors"}});
  require_values(0);

  // The old files stay until the new index names others.
  static_cast<void>(save(100, 1));
  CHECK(exported_names(to) == std::set<std::string>{"config.json", "model.2-00001-of-00002.safetensors",
                                                    "model.2-00002-of-00002.safetensors",
                                                    "model.safetensors.index.json"});
  require_values(100);
  static_cast<void>(save(200, 1));
  CHECK(exported_names(to) == sharded);
  require_values(200);

  static_cast<void>(save(300, 68));
  CHECK(exported_names(to) == std::set<std::string>{"config.json", "model.safetensors"});
  require_values(300);
  static_cast<void>(save(400, 67));
  CHECK(exported_names(to) == sharded);
  require_values(400);
}

TEST_CASE("an export that cannot be written leaves the old one", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path to = folder / "hub";
  const OpenCheckpoint old(save_small_checkpoint(folder / "old"));
  static_cast<void>(export_folder(states_of(old), to, {.max_bytes = 1}));
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder / "new", 20, 100));
  TensorSource failing = states_of(checkpoint);
  failing.read = [read = failing.read](std::size_t tensor, std::int64_t first, std::span<std::byte> bytes) {
    if (tensor == 1) {
      throw Error(ErrorCode::io, "the disk is gone");
    }
    read(tensor, first, bytes);
  };
  for (const std::uint64_t max_bytes : {1U, 1000U}) {
    CHECK(error_of([&] { static_cast<void>(export_folder(failing, to, {.max_bytes = max_bytes})); }) ==
          "1: the disk is gone");
    const TensorFiles files(to);
    CHECK(values_of(files.source(), "w") == counted_from(0, 12));
  }
}

TEST_CASE("weights of a state that varies between ranks are its first copy", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = save_small_checkpoint(folder.path());
  Manifest manifest = read_manifest(saved);
  StoredTensor& tensor = manifest.tensors[0];
  const auto names_with = [&](const char* name) {
    tensor.name = name;
    replace_manifest(saved, manifest);
    const OpenCheckpoint checkpoint(saved);
    std::vector<std::string> names;
    for (const TensorInfo& info : weights_of(checkpoint).tensors) {
      names.push_back(info.name);
    }
    return names;
  };
  CHECK(names_with("w@data=0") == std::vector<std::string>{"w"});
  CHECK(names_with("w@data=0@pod=0") == std::vector<std::string>{"w"});
  CHECK(names_with("w@data=1").empty());
  CHECK(names_with("w@data=0@pod=1").empty());
}

TEST_CASE("an index that names files elsewhere or missing tensors is refused", "[checkpoint]") {
  const TemporaryFolder folder;
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder / "saved"));
  static_cast<void>(export_folder(states_of(checkpoint), folder / "hub", {.max_bytes = 1}));
  const auto error_with = [&](const char* index) {
    write_file(folder / "hub" / index_name, index);
    return error_of([&] { TensorFiles(folder / "hub"); });
  };
  CHECK(error_with(R"({"weight_map":{"w":"model-00001-of-00002.safetensors"}})") == "nothing");
  for (const char* map : {R"("../w.safetensors")", R"("/w.safetensors")", R"("")", R"("..")", "7"}) {
    CHECK_THAT(error_with(("{\"weight_map\":{\"w\":" + std::string(map) + "}}").c_str()),
               Contains("tensor 'w' should be in a file of the same folder"));
  }
  CHECK_THAT(error_with(R"({"weight_map":{"v":"model-00001-of-00002.safetensors"}})"), Contains("has no tensor 'v'"));
  CHECK_THAT(error_with(R"({"weight_map":{"w":"model-00003-of-00003.safetensors"}})"),
             Contains("it asks for the file 'model-00003-of-00003.safetensors', which is not there"));
  CHECK_THAT(error_with("{}"), Contains("it has no object 'weight_map'"));
  CHECK_THAT(error_with("{"), Contains("not valid JSON"));
}

TEST_CASE("an export that would replace a file of a checkpoint is refused", "[checkpoint]") {
  const TemporaryFolder folder;
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder / "saved"));
  const std::filesystem::path other = save_small_checkpoint(folder / "other");
  const std::filesystem::path file = checkpoint.path() / rank_file_name(1);
  std::filesystem::create_directory_symlink(checkpoint.path(), folder / "way");
  std::filesystem::create_symlink(file, folder / "link.safetensors");
  std::filesystem::create_hard_link(file, folder / "name.safetensors");
  std::filesystem::create_directory(folder / "hub");
  std::filesystem::create_hard_link(file, folder / "hub" / one_file_name);
  const auto refusal_of_file = [&](const std::filesystem::path& path) {
    return error_of([&] { static_cast<void>(export_file(weights_of(checkpoint), path, {})); });
  };
  const auto refusal_of_folder = [&](const std::filesystem::path& path) {
    return error_of([&] { static_cast<void>(export_folder(weights_of(checkpoint), path, {.max_bytes = 1 << 20})); });
  };

  for (const std::filesystem::path& path :
       {file, folder / "way/rank-0.safetensors", folder / "way/new.safetensors", other / rank_file_name(0)}) {
    CHECK_THAT(refusal_of_file(path), Contains("it is a checkpoint, and would be damaged"));
  }
  for (const char* name : {"link.safetensors", "name.safetensors"}) {
    CHECK_THAT(refusal_of_file(folder / name), Contains("rank-1.safetensors', which is read for it"));
  }
  CHECK_THAT(refusal_of_folder(folder / "way"), Contains("it is a checkpoint, and would be damaged"));
  CHECK_THAT(refusal_of_folder(folder / "hub"), Contains("rank-1.safetensors', which is read for it"));
  checkpoint.check_all_files();
  OpenCheckpoint(other).check_all_files();
}

TEST_CASE("an export refuses a number that its type cannot hold, with its place", "[checkpoint]") {
  const TemporaryFolder folder;
  TensorSource source;
  source.path = "saved";
  source.tensors = {{"w", DType::f32, {2, 2}}};
  std::vector<float> values = {1, INFINITY, 3.4e38F, 0};
  source.read = [&values](std::size_t, std::int64_t, std::span<std::byte> to) {
    std::ranges::copy(std::as_bytes(std::span(values)), to.begin());
  };
  const auto error = [&](DType type) {
    return error_of([&] { static_cast<void>(export_file(source, folder / "w.safetensors", type)); });
  };
  CHECK_THAT(error(DType::bf16),
             Contains("'saved': tensor w has 3.39") && Contains("at [1, 0] (counted from 0), which BF16 cannot hold"));
  CHECK_FALSE(std::filesystem::exists(folder / "w.safetensors"));
  CHECK(error(DType::f32) == "nothing");
  values[2] = 3.3e38F;
  CHECK(error(DType::bf16) == "nothing");
}
