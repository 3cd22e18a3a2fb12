// Folders that Hugging Face's transformers wrote, and GGUF files that llama.cpp made of them. They have the same logits
// here, and the same bits when they are written again. Each that cannot be read gets one clear error.

#include <algorithm>
#include <csignal>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/hub_folder.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

const std::filesystem::path hub = SHARDRUN_HUB_FIXTURES;

/// The values of a .npy file of float32.
std::vector<float> values_of(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  REQUIRE(file.starts_with("\x93NUMPY"));
  REQUIRE(Contains("'<f4'").match(file.substr(0, 128)));
  const std::size_t begin = file.find('\n') + 1;
  std::vector<float> values((file.size() - begin) / sizeof(float));
  std::memcpy(values.data(), file.data() + begin, values.size() * sizeof(float));
  return values;
}

Ended run_in(const TemporaryFolder& folder, std::vector<std::string> words) {
  return run_program(folder.path(), words);
}

/// The largest difference from the logits that transformers computed, relative to the largest of these. `samples`: the
/// folder with its inputs and logits.
double error_of(const TemporaryFolder& folder, const std::filesystem::path& model, std::vector<std::string> words,
                const std::filesystem::path& samples) {
  words.insert(words.begin(), {"predict", model.string(), "--from", (samples / "inputs.npy").string(), "--to",
                               "logits.npy", "--set", "model.context=12"});
  std::filesystem::remove(folder / "logits.npy");
  const Ended ended = run_in(folder, words);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::vector<float> found = values_of(folder / "logits.npy");
  const std::vector<float> expected = values_of(samples / "logits.npy");
  REQUIRE(found.size() == expected.size());
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return worst / largest;
}

double error_of(const TemporaryFolder& folder, const std::filesystem::path& model, std::vector<std::string> words) {
  return error_of(folder, model, std::move(words), model);
}

std::filesystem::path gguf_of(const std::string& name) { return hub.parent_path() / "gguf" / (name + ".gguf"); }

/// A copy of a GGUF file in which a text is replaced by another of as many bytes.
std::filesystem::path changed_gguf(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::string file = read_file(gguf_of("llama"));
  const std::size_t at = file.find(from);
  REQUIRE(at != std::string::npos);
  REQUIRE(from.size() == to.size());
  file.replace(at, from.size(), to);
  write_file(folder / "changed.gguf", file);
  return folder / "changed.gguf";
}

/// A copy of a fixture in which a text of config.json is replaced.
std::filesystem::path changed(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::filesystem::remove_all(folder / "changed");
  std::filesystem::copy(hub / "llama", folder / "changed");
  std::string config = read_file(folder / "changed/config.json");
  const std::size_t at = config.find(from);
  REQUIRE(at != std::string::npos);
  config.replace(at, from.size(), to);
  write_file(folder / "changed/config.json", config);
  return folder / "changed";
}

std::string refusal_of(const TemporaryFolder& folder, const std::filesystem::path& model) {
  const Ended ended =
      run_in(folder, {"predict", model.string(), "--from", (hub / "llama/inputs.npy").string(), "--to", "logits.npy"});
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK(std::ranges::count(ended.err, '\n') < 12);
  return ended.err;
}

}  // namespace

TEST_CASE("hub: logits equal those of transformers", "[hub]") {
  const TemporaryFolder folder;
  for (const char* name : {"llama", "llama_bias", "llama_llama3", "llama_linear", "llama_yarn", "mistral", "qwen2",
                           "qwen2_window", "qwen3", "gpt2"}) {
    INFO(name);
    CHECK(error_of(folder, hub / name, {}) < 2e-6);
  }
}

TEST_CASE("hub: logits equal those of transformers under each strategy", "[hub]") {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> splits = {
      {"--ranks", "2", "--strategy", "tp"},
      {"--ranks", "3", "--strategy", "tp"},
      {"--ranks", "2", "--strategy", "pp"},
      {"--ranks", "2", "--strategy", "zero3"},
      {"--ranks", "4", "--strategy", "3d", "--set", "mesh.data=2", "--set", "mesh.model=2"}};
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const char* const name = i % 2 == 0 ? "qwen3" : "qwen2_window";
    INFO(name << " " << splits[i][3] << " " << splits[i][1]);
    CHECK(error_of(folder, hub / name, splits[i]) < 2e-6);
  }
}

TEST_CASE("hub: a third party's model reads a folder, is trained on, and writes it back", "[hub]") {
  const TemporaryFolder folder;
  const std::string plugins = "plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS;
  for (const std::vector<std::string>& split : std::vector<std::vector<std::string>>{
           {},
           {"--ranks", "2", "--strategy", "tp"},
           {"--ranks", "2", "--strategy", "pp"},
           {"--ranks", "2", "--strategy", "zero3"},
       }) {
    INFO((split.empty() ? "one rank" : split[3]));
    std::vector<std::string> words = {"--set", plugins};
    words.insert(words.end(), split.begin(), split.end());
    CHECK(error_of(folder, hub / "neox", words) < 2e-6);
  }
  CHECK(error_of(folder, hub / "neox_serial", {"--set", plugins}) < 2e-6);
  CHECK(run_in(folder, {"checkpoint", "check", (hub / "neox").string()}).code == 2);
  CHECK(run_in(folder, {"checkpoint", "check", (hub / "neox").string(), "--plugins", SHARDRUN_EXAMPLE_PROGRAMS}).code ==
        0);
  REQUIRE(run_in(folder, {"checkpoint", "export", (hub / "neox").string(), "-o", "again", "--hub", "--plugins",
                          SHARDRUN_EXAMPLE_PROGRAMS})
              .code == 0);
  CHECK(read_file(folder / "again/model.safetensors") == read_file(hub / "neox/model.safetensors"));
  CHECK(run_in(folder, {"generate", (hub / "neox").string(), "--plugins", SHARDRUN_EXAMPLE_PROGRAMS, "--prompt", "1",
                        "--tokens", "2"})
            .code == 0);
  CHECK_THAT(run_in(folder, {"generate", (hub / "neox").string(), "--plugins", "none"}).err,
             Contains("--plugins none: it is no folder"));
  CHECK_THAT(refusal_of(folder, hub / "neox"), Contains("named in [plugins] path, --plugins or SHARDRUN_PLUGIN_PATH"));

  write_file(folder / "text.txt", std::string(400, 'a') + std::string(400, 'b'));
  for (const std::string name : {"neox", "neox_serial"}) {
    INFO(name);
    write_file(folder / "job.ini",
               "[job]\noutput = out\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS "\n[model]\nfrom = " +
                   (hub / name).string() + "\ncontext = 12\n[data]\ntext = text.txt\nbatch = 4\n[train]\nsteps = 0\n");
    const Ended ended = run_in(folder, {"job.ini", "--replace"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    std::filesystem::remove_all(folder / "trained");
    REQUIRE(run_in(folder, {"checkpoint", "export", "out", "-o", "trained", "--hub"}).code == 0);
    CHECK(read_file(folder / "trained/model.safetensors") == read_file(hub / name / "model.safetensors"));
    CHECK(read_json(folder / "trained/config.json") == read_json(hub / name / "config.json"));
  }
}

TEST_CASE("hub: logits of GGUF files equal those of transformers, on one rank and under each strategy", "[hub]") {
  const TemporaryFolder folder;
  for (const char* name : {"llama", "llama_bias", "llama_llama3", "llama_yarn", "qwen2", "qwen3", "gpt2"}) {
    INFO(name);
    CHECK(error_of(folder, gguf_of(name), {}, hub / name) < 2e-6);
  }
  CHECK(error_of(folder, gguf_of("llama_llama3"), {"--ranks", "2", "--strategy", "tp"}, hub / "llama_llama3") < 2e-6);
  CHECK(error_of(folder, gguf_of("llama_bias"), {"--ranks", "3", "--strategy", "zero3"}, hub / "llama_bias") < 2e-6);
  CHECK(error_of(folder, gguf_of("gpt2"), {"--ranks", "2", "--strategy", "pp"}, hub / "gpt2") < 2e-6);
}

TEST_CASE("hub: a GGUF file becomes the folder that it was made of, with its tokenizer and template", "[hub]") {
  const TemporaryFolder folder;
  for (const char* name : {"llama", "qwen3", "gpt2"}) {
    INFO(name);
    std::filesystem::remove_all(folder / "made");
    const Ended ended =
        run_in(folder, {"checkpoint", "export", gguf_of(name).string(), "-o", "made", "--hub", "--type", "bf16"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    CHECK(read_file(folder / "made/model.safetensors") == read_file(hub / name / "model.safetensors"));
    CHECK(error_of(folder, folder / "made", {}, hub / name) < 2e-6);
    CHECK(read_file(folder / "made/chat_template.jinja") == "{{ messages[0].content }}<end>");
    CHECK(read_json(folder / "made/tokenizer_config.json").at("eos_token") == "<end>");
    CHECK(read_json(folder / "made/config.json")
              .at(name == std::string("gpt2") ? "n_positions" : "max_position_embeddings") == 64);
  }
  write_file(folder / "text.txt", "the end of that<end>the");
  for (const std::string& tokenizer : {gguf_of("gpt2").string(), std::string("made")}) {
    const Ended ended =
        run_in(folder, {"tokenize", "text.txt", "--tokenizer", tokenizer, "--to", "t.bin", "--replace"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const std::string bytes = read_file(folder / "t.bin");
    std::vector<std::uint16_t> tokens(bytes.size() / 2);
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    // the, a blank, e n d, a blank, o f, a blank, th, a t, <end>, the
    CHECK(tokens == std::vector<std::uint16_t>{32, 30, 4, 13, 3, 30, 14, 5, 30, 31, 0, 19, 33, 32});
  }
}

TEST_CASE("hub: training begins with the weights and the tokenizer of a GGUF file", "[hub]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += static_cast<char>('a' + i * i % 13);
  }
  write_file(folder / "text.txt", text);
  write_file(folder / "job.ini", "[job]\noutput = out\n[model]\nfrom = " + gguf_of("llama_bias").string() +
                                     "\ncontext = 12\n[data]\ntext = text.txt\nbatch = 4\n[train]\nsteps = 0\n");
  const Ended ended = run_in(folder, {"job.ini"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  REQUIRE(run_in(folder, {"checkpoint", "export", "out", "-o", "trained", "--hub"}).code == 0);
  CHECK(read_file(folder / "trained/model.safetensors") == read_file(hub / "llama_bias/model.safetensors"));
  CHECK(std::filesystem::exists(folder / "trained/tokenizer.json"));
  const Ended generated = run_in(folder, {"generate", "out", "--prompt", "the", "--tokens", "3", "--seed", "1"});
  INFO(generated.err);
  CHECK(generated.code == 0);
  CHECK(generated.out.starts_with("the"));
}

TEST_CASE("hub: GGUF files that cannot be read are refused with what is wrong", "[hub]") {
  const TemporaryFolder folder;
  CHECK_THAT(refusal_of(folder, changed_gguf(folder, "llama.context_length", "llama.contexT_length")),
             Contains("llama.contexT_length = 64 is not known"));
  CHECK_THAT(refusal_of(folder, changed_gguf(folder, "blk.1.attn_norm.weight", "blk.1.attn_nose.weight")),
             Contains("blk.1.attn_nose.weight [24] is not one of the model") &&
                 Contains("model.layers.1.input_layernorm.weight [24] is missing"));
  const std::string name = std::string("general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0", 32);
  CHECK_THAT(refusal_of(folder, changed_gguf(folder, name + "llama", name + "lemon")),
             Contains("no model here knows the architecture 'lemon'"));
  const std::filesystem::path cut = changed_gguf(folder, "llama", "llama");
  std::filesystem::resize_file(cut, 20000);
  CHECK_THAT(refusal_of(folder, cut), Contains("it is cut short"));
  write_file(folder / "text.txt", "the");
  const std::filesystem::path other = changed_gguf(folder, "gpt-2", "gpt-9");
  const Ended ended = run_in(folder, {"tokenize", "text.txt", "--tokenizer", other.string(), "--to", "t.bin"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("tokenizer.ggml.pre = gpt-9: known are codeshell, command-r"));
}

TEST_CASE("hub: a folder that is written again has the same tensors, and its run goes back to one", "[hub]") {
  const TemporaryFolder folder;
  for (const char* name : {"llama", "qwen2_window", "gpt2", "llama_linear"}) {
    INFO(name);
    std::filesystem::remove_all(folder / "again");
    REQUIRE(run_in(folder, {"checkpoint", "export", (hub / name).string(), "-o", "again", "--hub"}).code == 0);
    CHECK(read_file(folder / "again/model.safetensors") == read_file(hub / name / "model.safetensors"));
    std::filesystem::copy_file(hub / name / "inputs.npy", folder / "again/inputs.npy");
    std::filesystem::copy_file(hub / name / "logits.npy", folder / "again/logits.npy");
    CHECK(error_of(folder, folder / "again", {}) < 2e-6);
  }
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += static_cast<char>('a' + i * i % 13);
  }
  write_file(folder / "text.txt", text);
  write_file(folder / "job.ini", "[job]\noutput = out\n[model]\nfrom = " + (hub / "llama").string() +
                                     "\ncontext = 12\n[data]\ntext = text.txt\nbatch = 4\n[train]\nsteps = 0\n");
  const Ended ended = run_in(folder, {"job.ini"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  REQUIRE(run_in(folder, {"checkpoint", "export", "out", "-o", "trained", "--hub"}).code == 0);
  CHECK(read_file(folder / "trained/model.safetensors") == read_file(hub / "llama/model.safetensors"));
  CHECK(read_json(folder / "trained/config.json") == read_json(hub / "llama/config.json"));
}

TEST_CASE("hub: an export replaces neither the folder that a run began with nor another model's tokenizer", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::copy(hub / "llama", folder / "origin");
  write_file(folder / "text.txt", std::string(400, 'a') + std::string(400, 'b'));
  write_file(folder / "job.ini",
             "[job]\noutput = out\n[model]\nfrom = origin\ncontext = 12\n[data]\ntext = text.txt\n"
             "batch = 4\n[train]\nsteps = 0\n");
  const Ended trained = run_in(folder, {"job.ini"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  const Ended onto_origin = run_in(folder, {"checkpoint", "export", "out", "-o", "origin", "--hub"});
  CHECK(onto_origin.code == 2);
  CHECK_THAT(onto_origin.err, Contains("is the folder that the run began with"));
  CHECK(read_file(folder / "origin/model.safetensors") == read_file(hub / "llama/model.safetensors"));
  std::filesystem::create_directories(folder / "other");
  write_file(folder / "other/tokenizer.json", "{}");
  const Ended onto_other = run_in(folder, {"checkpoint", "export", "out", "-o", "other", "--hub"});
  CHECK(onto_other.code == 2);
  CHECK_THAT(onto_other.err, Contains("has a tokenizer.json, which is not of this model"));
  std::filesystem::rename(folder / "origin", folder / "gone");
  const Ended without = run_in(folder, {"checkpoint", "export", "out", "-o", "third", "--hub"});
  CHECK(without.code == 0);
  CHECK_THAT(without.err, Contains("is not there: config.json is made from the model's options"));
}

TEST_CASE("hub: a run goes on when the folder that it began with is gone", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::copy(hub / "llama", folder / "origin");
  write_file(folder / "tokens.bin", [] {
    std::string tokens;
    for (int i = 0; i < 400; ++i) {
      tokens += {static_cast<char>(i * i % 37), '\0'};
    }
    return tokens;
  }());
  write_file(folder / "job.ini",
             "[job]\noutput = out\n[model]\nfrom = origin\ncontext = 12\n[data]\ntokens = tokens.bin\nbatch = 4\n"
             "[train]\nsteps = 4\nschedule = constant\n[checkpoint]\nevery = 2\n");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "job.ini");
    return run_in(folder, words);
  };
  REQUIRE(run({"--set", "job.output=whole"}).code == 0);
  REQUIRE(run({"--set", "train.steps=2"}).code == 0);
  std::filesystem::rename(folder / "origin", folder / "gone");

  for (const std::string resume : {"--resume", "--resume=out/checkpoints/step-000002"}) {
    std::filesystem::remove_all(folder / "again");
    std::filesystem::copy(folder / "out", folder / "again", std::filesystem::copy_options::recursive);
    INFO(resume);
    const bool is_named = resume != "--resume";
    const Ended resumed = run({resume, "--set", is_named ? "job.output=third" : "job.output=again", "--set",
                               "job.ranks=2", "--set", "job.strategy=zero3"});
    INFO(resumed.err);
    CHECK(resumed.code == 0);
    const std::filesystem::path output = folder / (is_named ? "third" : "again");
    CHECK(read_json_lines(output / "metrics.jsonl").back().at("loss").to_number<double>() ==
          Approx(read_json_lines(folder / "whole/metrics.jsonl").back().at("loss").to_number<double>()).epsilon(1e-5));
  }

  // Settings of the job replace those of the checkpoint. The others come from the checkpoint.
  std::filesystem::copy(folder / "out", folder / "named", std::filesystem::copy_options::recursive);
  const Ended named = run({"--resume", "--set", "job.output=named", "--set", "model.name=llama"});
  INFO(named.err);
  CHECK(named.code == 0);
  CHECK(read_json_lines(folder / "named/metrics.jsonl").back().at("loss").to_number<double>() ==
        Approx(read_json_lines(folder / "whole/metrics.jsonl").back().at("loss").to_number<double>()).epsilon(1e-5));
  const Ended other = run({"--resume", "--set", "job.output=named", "--set", "model.name=gpt"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("[model] name = gpt, and '") && Contains("step-000004' holds the model llama"));

  std::filesystem::create_directories(folder / "fourth/checkpoints");
  for (const std::string output : {"third/none", "fourth"}) {
    for (const std::string model : {"model.context=12", "model.name=llama"}) {
      const Ended anew = run({"--set", "job.output=" + output, "--resume", "--set", model});
      CHECK(anew.code == 2);
      CHECK_THAT(anew.err, Contains("job.ini:4: [model] from: ") && Contains("/origin'"));
    }
  }
  for (const std::string resume : {"nowhere", "latest"}) {
    for (const std::string model : {"model.context=12", "model.name=llama"}) {
      const Ended wrong = run({"--set", "checkpoint.resume=" + resume, "--set", model});
      CHECK(wrong.code == 2);
      CHECK_THAT(wrong.err, Contains("[checkpoint] resume: '") && Contains("/" + resume + "' is no checkpoint"));
    }
  }

  const Ended exported =
      run_in(folder, {"checkpoint", "export", "out/checkpoints/step-000002", "-o", "exported", "--hub"});
  CHECK(exported.code == 0);
  CHECK_THAT(exported.out, Contains(" of llama, step 2, "));

  const Ended anew = run({"--set", "job.output=fourth", "--resume"});
  CHECK(anew.code == 2);
  CHECK_THAT(anew.err, Contains("[model] from") && Contains("origin"));
  const Ended text = run({"--resume", "--set", "data.text=tokens.bin", "--set", "data.tokens="});
  CHECK(text.code == 2);
  CHECK_THAT(text.err, Contains("put it back, or set [data] tokenizer"));
  // A run's own job has all options, so its weights are read even if nothing of it can be resumed.
  std::filesystem::remove_all(folder / "third/checkpoints");
  std::filesystem::remove_all(folder / "out/checkpoints/step-000002");
  const Ended generated =
      run_in(folder, {"predict", "third", "--from", (hub / "llama/inputs.npy").string(), "--to", "logits.npy"});
  INFO(generated.err);
  CHECK(generated.code == 0);
}

TEST_CASE("hub: training begins with the weights, and mixed precision with their float32 values", "[hub]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += static_cast<char>('a' + i * i % 13);
  }
  write_file(folder / "text.txt", text);
  const auto loss = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> words = {"job.ini", "--replace"};
    for (const std::string& setting : settings) {
      words.insert(words.end(), {"--set", setting});
    }
    const Ended ended = run_in(folder, words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return read_json_lines(folder / "out/metrics.jsonl").at(0).at("loss").to_number<double>();
  };
  write_file(folder / "job.ini", "[job]\noutput = out\n[model]\nfrom = " + (hub / "llama_bias").string() +
                                     "\ncontext = 12\n[data]\ntext = text.txt\nbatch = 4\n[train]\nsteps = 1\n");
  const double alone = loss({});
  CHECK(alone > 3.75);  // a model with small initial values has about ln 40 = 3.69
  CHECK(loss({"job.ranks=2", "job.strategy=zero3"}) == Approx(alone).epsilon(1e-5));
  CHECK(loss({"job.ranks=2", "job.strategy=tp"}) == Approx(alone).epsilon(1e-5));
  CHECK(loss({"train.precision=mixed", "job.ranks=2", "job.strategy=zero1"}) == Approx(alone).epsilon(3e-2));
}

TEST_CASE("hub: a job says that it bounds the context of a folder, unless it sets one", "[hub]") {
  const TemporaryFolder folder;
  static_cast<void>(changed(folder, "\"max_position_embeddings\": 64", "\"max_position_embeddings\": 4096"));
  write_file(folder / "text.txt", std::string(3000, 'a') + "bc");
  write_file(folder / "job.ini",
             "[job]\noutput = out\n[model]\nfrom = changed\n[data]\ntext = text.txt\nbatch = 1\nsplit = 0.5\n"
             "[train]\nsteps = 0\n");
  const std::string note = "[model] context = 1024 of the 4096 tokens that the model knows";
  CHECK_THAT(run_in(folder, {"job.ini"}).out, Contains(note));
  CHECK_THAT(run_in(folder, {"job.ini", "--replace", "--set", "model.context=1024"}).out, !Contains(note));

  const std::string tokens = (hub / "llama/inputs.npy").string();
  const Ended unset = run_in(folder, {"predict", "changed", "--from", tokens, "--to", "y.npy"});
  CHECK(unset.code == 2);
  CHECK_THAT(unset.err, Contains(note) && Contains("int32 of shape (2, 12): expected integers of shape (n, 1024)"));
  CHECK_THAT(unset.err, Contains("a sequence of [model] context = 1024 tokens in each row"));
  const Ended set =
      run_in(folder, {"predict", "changed", "--from", tokens, "--to", "y.npy", "--set", "model.context=12"});
  CHECK(set.code == 0);
  CHECK_THAT(set.err, !Contains(note));
  const Ended checked = run_in(folder, {"checkpoint", "check", "changed", "--tokens", tokens});
  CHECK(checked.code == 0);
  CHECK_THAT(checked.out, !Contains(note));
  CHECK_THAT(run_in(folder, {"checkpoint", "check", "changed"}).out, Contains(note));
}

TEST_CASE("hub: folders that cannot be read are refused with what is wrong", "[hub]") {
  const TemporaryFolder folder;
  CHECK_THAT(refusal_of(folder, changed(folder, "\"mlp_bias\"", "\"mlp_banana\"")),
             Contains("mlp_banana = false: the model 'llama' does not know this key"));
  CHECK_THAT(refusal_of(folder, changed(folder, "LlamaForCausalLM", "BananaForCausalLM")),
             Contains("no model here knows the architecture 'BananaForCausalLM'") && Contains("Qwen3ForCausalLM"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"silu\"", "\"gelu\"")), Contains("hidden_act = gelu: only silu"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")),
             Contains("model.layers.2.input_layernorm.weight [24] is missing") && Contains("and 1 more"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")),
             Contains("model.layers.1.input_layernorm.weight [24] is not one of the model"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"intermediate_size\": 20", "\"intermediate_size\": 21")),
             Contains("mlp.down_proj.weight is BF16 [24, 20], expected real numbers [24, 21]"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4")),
             Contains("kv_heads = 4 does not divide heads = 6"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"hidden_size\": 24", "\"hidden_size\": \"wide\"")),
             Contains("hidden_size = wide, expected a whole number"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"default\"", "\"dynamic\"")), Contains("rope_type = dynamic"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4")),
             Contains("changed/config.json': ") && Contains("kv_heads = 4"));
  CHECK_THAT(refusal_of(folder, changed(folder, "\"rope_type\"", "\"partial_rotary_factor\": 0.5, \"rope_type\"")),
             Contains("partial_rotary_factor = 0.5: only 1 is supported"));
  CHECK(error_of(folder, changed(folder, "\"rope_type\"", "\"partial_rotary_factor\": 1.0, \"rope_type\""), {}) < 2e-6);
  CHECK_THAT(refusal_of(folder, changed(folder, "\"mlp_bias\": false", "\"quantization_config\": {\"bits\": 4}")),
             Contains("quantization_config.bits = 4"));
  CHECK_THAT(refusal_of(folder, changed(folder, "{", "{,")), Contains("config.json"));
  const std::filesystem::path pickled = changed(folder, "{", "{ ");
  std::filesystem::rename(pickled / "model.safetensors", pickled / "pytorch_model.bin");
  CHECK_THAT(refusal_of(folder, pickled), Contains("pytorch_model.bin is a pickle"));
  const std::filesystem::path partial = changed(folder, "{", "{ ");
  std::filesystem::remove(partial / "model.safetensors");
  write_file(partial / "model.safetensors.index.json",
             R"({"weight_map": {"model.norm.weight": "2-of-2.safetensors"}})");
  CHECK_THAT(refusal_of(folder, partial),
             Contains("changed/model.safetensors.index.json'") &&
                 Contains("it asks for the file '2-of-2.safetensors', which is not there"));
  std::filesystem::copy(hub / "llama/model.safetensors", partial / "2-of-2.safetensors");
  write_file(partial / "model.safetensors.index.json", R"({"weight_map": {"model.horn": "2-of-2.safetensors"}})");
  CHECK_THAT(refusal_of(folder, partial), Contains("changed/model.safetensors.index.json': '") &&
                                              Contains("2-of-2.safetensors' has no tensor 'model.horn'"));
  write_file(partial / "model.safetensors.index.json", R"({"weight_map": {"model.norm.weight": "."}})");
  CHECK_THAT(refusal_of(folder, partial),
             Contains("tensor 'model.norm.weight' should be in a file of the same folder"));
  std::filesystem::create_directories(folder / "empty");
  CHECK_THAT(refusal_of(folder, folder / "empty"),
             Contains("empty' has no weights: expected weights.safetensors or checkpoints, as a run writes them, or "
                      "config.json with model.safetensors or model.safetensors.index.json"));
  const std::filesystem::path looped = changed(folder, "{", "{ ");
  std::filesystem::remove(looped / "model.safetensors");
  std::filesystem::create_symlink("model.safetensors", looped / "model.safetensors");
  CHECK_THAT(refusal_of(folder, looped), Contains("model.safetensors"));
  const std::filesystem::path cut = changed(folder, "{", "{ ");
  std::filesystem::resize_file(cut / "model.safetensors", 5000);
  CHECK_THAT(refusal_of(folder, cut), Contains("model.safetensors"));
}

TEST_CASE("hub: the files of a cache, which are links into another folder, are read", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "blobs");
  std::filesystem::create_directories(folder / "snapshots/1");
  for (const char* name : {"config.json", "model.safetensors", "inputs.npy", "logits.npy"}) {
    std::filesystem::copy_file(hub / "mistral" / name, folder / "blobs" / name);
    std::filesystem::create_symlink(std::filesystem::path("../../blobs") / name, folder / "snapshots/1" / name);
  }
  CHECK(error_of(folder, folder / "snapshots/1", {}) < 2e-6);
}

namespace {

std::string said_by(const TemporaryFolder& folder, std::vector<std::string> words) {
  words.insert(words.begin(), {"generate", "chat", "--temperature", "0", "--tokens", "8"});
  const Ended ended = run_in(folder, words);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return ended.out;
}

}  // namespace

TEST_CASE("hub: a text that ends within a character ends before it", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::copy(hub / "llama", folder / "chat");
  std::string vocab = R"("<0xA9>":0)";  // all other tokens are first bytes of characters
  for (int token = 1; token < 40; ++token) {
    constexpr const char* digits = "0123456789ABCDEF";
    const int byte = 0xC2 + token;
    vocab += std::string(R"(,"<0x)") + digits[byte / 16] + digits[byte % 16] + ">\":" + std::to_string(token);
  }
  write_file(folder / "chat/tokenizer.json",
             R"({"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]},)"
             R"("model":{"type":"BPE","byte_fallback":true,"vocab":{)" +
                 vocab + R"(},"merges":[]}})");
  const Ended ended =
      run_in(folder, {"generate", "chat", "--prompt", "\xC3\xA9", "--temperature", "0", "--tokens", "1"});
  INFO(ended.err);
  CHECK(ended.out == "\xC3\xA9\n");
}

TEST_CASE("hub: a tokenizer with more tokens than the model is found", "[hub]") {
  const TemporaryFolder folder;
  with_tokenizer(folder, "null");
  CHECK_THAT(run_in(folder, {"checkpoint", "check", "chat"}).out, Contains("yes: the tokenizer has"));
  std::string text = read_file(folder / "chat/tokenizer.json");
  const std::string list = R"("added_tokens":[)";
  std::string more;
  for (int id = 40; id < 200; ++id) {  // the text has 40 tokens
    more += R"({"id":)" + std::to_string(id) + R"(,"content":"<)" + std::to_string(id) +
            R"(>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},)";
  }
  text.insert(text.find(list) + list.size(), more);
  write_file(folder / "chat/tokenizer.json", text);
  const Ended checked = run_in(folder, {"checkpoint", "check", "chat"});
  CHECK(checked.code == 1);
  CHECK_THAT(checked.out, Contains("NO:  the tokenizer has 200 tokens, and the model has room for"));
  const Ended generated = run_in(folder, {"generate", "chat", "--prompts", "prompts.jsonl"});
  CHECK(generated.code == 2);
  CHECK_THAT(generated.err, Contains("the tokenizer has 200 tokens") && Contains("do not belong together"));
}

TEST_CASE("hub: a prompt gets the tokens of the post-processor, and a conversation only those of its template",
          "[hub]") {
  const TemporaryFolder folder;
  with_tokenizer(folder, "null");
  const std::string bare = said_by(folder, {"--prompt", "abc"});
  const std::string marked = said_by(folder, {"--prompt", "<s>abc"});
  REQUIRE(bare != marked);
  with_tokenizer(folder, R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
                         R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
                         R"("special_tokens":{"<s>":{"id":"<s>","ids":[0],"tokens":["<s>"]}}})");
  CHECK(said_by(folder, {"--prompt", "abc"}) == marked);

  write_file(folder / "chat/chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
  write_file(folder / "chat/tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const std::string said = said_by(folder, {"--system", "a", "--message", "bc"});
  CHECK("abc" + said == marked);
  CHECK(said_by(folder, {"--system", "a", "--message", "bc", "--ranks", "2", "--strategy", "pp"}) == said);
  CHECK(said_by(folder, {"--prompt", "abc", "--ranks", "1"}) == marked);
  const Ended empty = run_in(folder, {"generate", "chat", "--message", ""});
  CHECK(empty.code == 2);
  CHECK_THAT(empty.err, Contains("--message: expected what the user says, found an empty text"));
  write_file(folder / "chat/tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": false})");
  CHECK(said_by(folder, {"--prompt", "abc"}) == bare);
}

TEST_CASE("hub: an answer ends at each end token of generation_config.json and tokenizer_config.json", "[hub]") {
  const TemporaryFolder folder;
  with_tokenizer(folder, "null");
  write_file(folder / "chat/chat_template.jinja", "{{ messages[0].content }}");
  const std::string answer = said_by(folder, {"--message", "abc"});
  REQUIRE(answer.size() == 9);
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL";
  const char second = answer[1];
  const std::string first_part = answer.substr(0, answer.find(second)) + "\n";
  const std::string token = std::to_string(letters.find(second) + 2);
  write_file(folder / "chat/generation_config.json", R"({"eos_token_id": [1, )" + token + "]}");
  CHECK(said_by(folder, {"--message", "abc"}) == first_part);
  write_file(folder / "chat/generation_config.json", R"({"eos_token_id": )" + token + "}");
  CHECK(said_by(folder, {"--message", "abc"}) == first_part);
  std::filesystem::remove(folder / "chat/generation_config.json");
  write_file(folder / "chat/tokenizer_config.json", std::string(R"({"eos_token": ")") + second + "\"}");
  CHECK(said_by(folder, {"--message", "abc"}) == first_part);
}

TEST_CASE("hub: chat-template prints a conversation, and names what is wrong", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "m");
  write_file(
      folder / "m/chat_template.jinja",
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
      "{{ mode }}{% if add_generation_prompt %}<assistant>{% endif %}");
  write_file(folder / "messages.json", R"([{"role": "user", "content": "Grüße\n"}])");
  write_file(folder / "tools.json", R"([{"type": "function"}])");
  const auto printed = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"chat-template", "m", "messages.json"});
    return run_in(folder, words);
  };
  CHECK(printed({}).out == "<user>Grüße\n<assistant>");
  CHECK(printed({"--tools", "tools.json", "--no-generation-prompt", "--set", "mode=[1, true]"}).out ==
        "<user>Grüße\n1[1, True]");
  const Ended other = printed({"--template", "rag"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("no chat template 'rag'; it has default"));
  write_file(folder / "m/chat_template.jinja", "{{ messages\n | frobnicate }}");
  const Ended wrong = printed({});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err,
             Contains("chat_template.jinja") && Contains("line 2, column 4: the filter 'frobnicate' is not known"));
  CHECK(printed({"--set", "mode"}).code == 2);
}

TEST_CASE("hub: chat-template names the file and the message that is wrong", "[hub]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "m");
  write_file(folder / "m/chat_template.jinja", "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}");
  const std::string first = R"([{"role": "user", "content": "a"}, )";
  const std::string content = "message 2 of 2: expected a text, or a list of parts, as its \"content\", found ";
  for (const auto& [json, fault] : std::initializer_list<std::pair<std::string, std::string>>{
           {first + R"({"role": "user"}])", content + "none"},
           {first + R"({"role": "user", "content": 5}])", content + "5"},
           {first + R"({"content": "b"}])", "message 2 of 2: expected a text as its \"role\", found none"},
           {R"(["x"])", R"(message 1 of 1: expected an object with "role" and "content", found "x")"},
           {"[]", "found []"},
           {R"({"messages": []})", R"(expected a list of at least one message as JSON)"},
           {"[x]", "not valid JSON"},
           {"", "found nothing"},
       }) {
    INFO(json);
    write_file(folder / "messages.json", json);
    const Ended ended = run_in(folder, {"chat-template", "m", "messages.json"});
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains("messages.json: ") && Contains(fault));
  }
  write_file(folder / "messages.json", R"([{"role": "assistant", "content": null, "tool_calls": []}])");
  CHECK(run_in(folder, {"chat-template", "m", "messages.json"}).code == 0);
}

TEST_CASE("hub: checkpoint check says yes or no", "[hub]") {
  const TemporaryFolder folder;
  const auto checked = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"checkpoint", "check"});
    return run_in(folder, words);
  };
  const std::string model = (hub / "llama").string();
  const std::string tokens = model + "/inputs.npy";
  const Ended same = checked({model, "--tokens", tokens, "--logits", model + "/logits.npy"});
  CHECK(same.code == 0);
  CHECK_THAT(same.out, Contains("hidden_size = ") && Contains("sets width = ") &&
                           Contains("architectures.0 = LlamaForCausalLM: model llama") &&
                           Contains("model.embed_tokens.weight [40, ") &&
                           Contains("yes: logits and those of the float64 reference") &&
                           Contains("yes: logits and those of --logits"));
  const Ended other = checked({model, "--tokens", tokens, "--logits", (hub / "mistral/logits.npy").string()});
  CHECK(other.code == 1);
  CHECK_THAT(other.out, Contains("yes: logits and those of the float64 reference") &&
                            Contains("NO:  logits and those of --logits"));
  CHECK(checked({model, "--tokens", tokens, "--limit", "0"}).code == 1);
  const Ended alone = checked({model, "--logits", tokens});
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("--logits has no effect without --tokens"));
  CHECK(checked({folder.path().string()}).code == 2);
  for (const auto& [shape, found] :
       std::initializer_list<std::pair<std::string, std::string>>{{"(0, 16)", "[0, 16]"}, {"(2, 0)", "[2, 0]"}}) {
    write_file(folder / "none.npy", npy_file<std::int32_t>("<i4", shape, {}));
    const Ended empty = checked({model, "--tokens", "none.npy"});
    CHECK(empty.code == 2);
    CHECK_THAT(empty.err, Contains("--tokens: expected [sequences, tokens], at least one sequence of 1 to 64 tokens, "
                                   "found " +
                                   found));
  }
  write_file(folder / "long.npy",
             npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 65), }", std::string(65, '\1')));
  CHECK_THAT(checked({model, "--tokens", "long.npy"}).err, Contains("1 to 64 tokens, found [1, 65]"));

  const Ended gguf = checked({gguf_of("llama").string(), "--tokens", tokens, "--logits", model + "/logits.npy"});
  CHECK(gguf.code == 0);
  CHECK_THAT(gguf.out, Contains("hidden_size = 24: sets width = 24") && Contains("yes: logits and those of --logits"));

  with_tokenizer(folder, "null");
  write_file(folder / "text.txt", "abc");
  const auto ids = [&](const std::string& bytes) {
    write_file(folder / "ids.npy", std::string("\x93NUMPY\x01\x00", 8) + std::string("v\0", 2) +
                                       "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }" +
                                       std::string(60, ' ') + "\n" + bytes);
    return checked({"chat", "--text", "text.txt", "--against", "ids.npy"});
  };
  const Ended equal = ids("\x02\x03\x04");
  INFO(equal.err);
  CHECK(equal.code == 0);
  CHECK_THAT(equal.out, Contains("yes: the text has the same 3 tokens"));
  const Ended unequal = ids("\x02\x03\x05");
  CHECK(unequal.code == 1);
  CHECK_THAT(unequal.out, Contains("they part at token 2: 4 here, 5 there"));
}

TEST_CASE("hub: a signal ends checkpoint check while it computes", "[hub]") {
  const TemporaryFolder folder;
  constexpr std::size_t sequences = 1'000'000;  // take many minutes
  write_file(folder / "x.npy",
             npy_file("{'descr': '|u1', 'fortran_order': False, 'shape': (" + std::to_string(sequences) + ", 8), }",
                      std::string(8 * sequences, '\1')));
  for (const int signal : {SIGTERM, SIGINT}) {
    const Ended ended =
        run_program(folder.path(), {"checkpoint", "check", (hub / "llama").string(), "--tokens", "x.npy"},
                    [&](pid_t process, std::string_view out) {
                      if (out.find("yes: the tensors") != std::string_view::npos) {
                        ::kill(process, signal);
                      }
                    });
    CHECK(ended.code == -signal);
  }
}

TEST_CASE("hub: checkpoint check names the first layer whose outputs part from another program's", "[hub]") {
  const TemporaryFolder folder;
  const std::string model = (hub / "llama").string();
  const std::string outputs = read_file(hub / "llama/outputs.safetensors");  // embedding, layer_0, layer_1
  constexpr std::size_t layer_bytes = sizeof(float) * 2 * 12 * 24;
  const auto checked = [&](const std::string& file) {
    write_file(folder / "outputs.safetensors", file);
    return run_in(folder, {"checkpoint", "check", model, "--tokens", model + "/inputs.npy", "--outputs",
                           "outputs.safetensors", "--logits", model + "/logits.npy"});
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string file = outputs;
    file.replace(file.find(from), from.size(), to);
    return file;
  };
  const Ended same = checked(outputs);
  INFO(same.err);
  CHECK(same.code == 0);
  CHECK_THAT(same.out,
             Contains("yes: outputs and those of --outputs") && Contains("yes: logits and those of --logits"));

  std::string damaged = outputs;
  const float wrong = 0.5F;
  for (const std::size_t behind : {layer_bytes, std::size_t{0}}) {  // the last element of both layers
    std::memcpy(damaged.data() + damaged.size() - behind - sizeof wrong, &wrong, sizeof wrong);
  }
  const Ended other = checked(damaged);
  CHECK(other.code == 1);
  CHECK_THAT(other.out, Contains("NO:  outputs and those of --outputs first part at layer_0") &&
                            Contains("at [1, 11, 23]") && Contains("0.5 there") &&
                            Contains("yes: logits and those of --logits"));

  for (const float odd : {NAN, INFINITY}) {
    damaged = outputs;
    std::memcpy(damaged.data() + damaged.size() - sizeof odd, &odd, sizeof odd);
    const Ended ended = checked(damaged);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.out, Contains("NO:  outputs and those of --outputs first part at layer_1, by inf") &&
                              Contains("at [1, 11, 23]"));
  }

  std::string rounded = "{";
  for (std::size_t i = 0; i < 3; ++i) {
    const char* const names[] = {"embedding", "layer_0", "layer_1"};
    rounded += (i == 0 ? "\"" : ",\"") + std::string(names[i]) +
               R"(":{"dtype":"BF16","shape":[2,12,24],"data_offsets":[)" + std::to_string(i * layer_bytes / 2) + "," +
               std::to_string((i + 1) * layer_bytes / 2) + "]}";
  }
  rounded += "}";
  rounded.insert(0, bytes_of<std::uint64_t>({rounded.size()}));
  for (std::size_t at = outputs.size() - 3 * layer_bytes; at < outputs.size(); at += sizeof(float)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, outputs.data() + at, sizeof bits);
    rounded += bytes_of<std::uint16_t>({static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U)});
  }
  const Ended narrow = checked(rounded);
  INFO(narrow.out << narrow.err);
  CHECK(narrow.code == 0);
  rounded[rounded.size() - 2] = static_cast<char>(rounded[rounded.size() - 2] + 2);  // two units in the last place
  CHECK(checked(rounded).code == 1);

  const Ended unknown = checked(replaced("layer_0", "layer_7"));
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("the model has no output 'layer_7' (did you mean 'layer_"));
  const Ended turned = checked(replaced("[2,12,24]", "[2,24,12]"));
  CHECK(turned.code == 2);
  CHECK_THAT(turned.err, Contains("is F32 [2, 24, 12], expected real numbers [2, 12, 24]"));
  const Ended alone = run_in(folder, {"checkpoint", "check", model, "--outputs", "outputs.safetensors"});
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("--outputs has no effect without --tokens"));
}
