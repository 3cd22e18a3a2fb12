#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/utf8.h"
#include "core/cli/options.h"
#include "core/data/npy.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/text/bpe_tokenizer.h"
#include "core/text/bpe_trainer.h"
#include "core/text/patterns.h"

namespace shardrun::cli {
namespace {

/// Calls `use(text)` for each document of a file: the whole file, or a field of each JSON line. Adds the document's
/// place to errors.
template <typename Use>
void for_each_document(const Parsed& parsed, const std::filesystem::path& path, const Use& use) {
  const std::optional<std::string> field = parsed.get("field");
  const files::MappedFile file(path);
  const std::string name = files::human_path(path);
  const auto use_text = [&](std::string_view text, const std::string& place) {
    stop_point();
    try {
      if (parsed.has("replace-invalid") && first_invalid_utf8(text)) {
        use(with_replacements(text));
      } else {
        use(text);
      }
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place, error.message()));
    }
  };
  if (!field) {
    use_text(file.text(), name);
    return;
  }
  std::int64_t line = 0;
  for (std::string_view rest = file.text(); !rest.empty();) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    ++line;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const std::string place = fmt::format("{}, line {}", name, line);
    boost::system::error_code failed;
    const boost::json::value json = boost::json::parse(boost::json::string_view(text.data(), text.size()), failed);
    const boost::json::object* const object = json.if_object();
    const boost::json::value* const found = object == nullptr ? nullptr : object->if_contains(*field);
    if (failed || found == nullptr || !found->is_string()) {
      throw Error(ErrorCode::data,
                  fmt::format("{}: expected an object of JSON with the text \"{}\", found {}", place, *field,
                              failed              ? failed.message()
                              : object == nullptr ? "another value"
                              : found == nullptr  ? "none of this name"
                                                  : "something else under this name"));
    }
    use_text(std::string_view(found->get_string()), place);
  }
}

/// A file of tokens that is being written: raw numbers, or .npy.
class TokenFile {
 public:
  TokenFile(const std::filesystem::path& path, std::int64_t vocabulary)
      : is_npy_(path.extension() == ".npy"), is_wide_(vocabulary > 65536), file_(path) {
    if (is_npy_) {
      file_.write(std::vector<std::byte>(header().size()));
    }
  }

  void write(std::span<const std::int32_t> tokens) {
    count_ += static_cast<std::int64_t>(tokens.size());
    if (is_wide_) {
      file_.write(std::as_bytes(tokens));
      return;
    }
    narrow_.assign(tokens.begin(), tokens.end());
    file_.write(std::as_bytes(std::span(narrow_)));
  }

  void commit() {
    if (is_npy_) {
      const std::string written = header();
      file_.write_at(0, std::as_bytes(std::span(written)));
    }
    file_.commit();
  }

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] const char* type() const noexcept { return is_wide_ ? "uint32" : "uint16"; }

 private:
  /// The .npy header. Its size does not depend on the count, so it can be rewritten at the end.
  [[nodiscard]] std::string header() const { return data::npy_header(is_wide_ ? "<u4" : "<u2", {count_}); }

  bool is_npy_;
  bool is_wide_;
  files::AtomicFile file_;
  std::int64_t count_ = 0;
  std::vector<std::uint16_t> narrow_;
};

std::int32_t end_token(const text::BpeTokenizer& tokenizer, const std::string& content) {
  const std::optional<std::int32_t> token = tokenizer.find(content);
  if (!token) {
    throw Error(ErrorCode::usage, fmt::format("--eos {}: the tokenizer has no such token", content));
  }
  return *token;
}

void encode_files(const Parsed& parsed, const std::vector<std::filesystem::path>& files,
                  const std::filesystem::path& to) {
  const text::BpeTokenizer tokenizer = text::BpeTokenizer::from_file(*parsed.get("tokenizer"));
  std::optional<std::int32_t> end;
  if (const std::optional<std::string> content = parsed.get("eos")) {
    end = end_token(tokenizer, *content);
  }
  text::BpeEncoder encoder(tokenizer);
  TokenFile file(to, tokenizer.vocabulary());
  std::int64_t documents = 0;
  std::vector<std::int32_t> tokens;
  const auto add = [&](const std::vector<std::int32_t>& of_template) {
    if (parsed.has("template")) {
      tokens.insert(tokens.end(), of_template.begin(), of_template.end());
    }
  };
  for (const std::filesystem::path& path : files) {
    for_each_document(parsed, path, [&](std::string_view text) {
      add(tokenizer.before());
      encoder.encode(text, tokens);
      add(tokenizer.behind());
      if (end) {
        tokens.push_back(*end);
      }
      ++documents;
      constexpr std::size_t enough = std::size_t{1} << 16U;
      if (tokens.size() > enough) {
        file.write(tokens);
        tokens.clear();
      }
    });
  }
  file.write(tokens);
  file.commit();
  fmt::print("{} tokens of {} from {} {}: {}\n", file.count(), file.type(), documents,
             documents == 1 ? "document" : "documents", files::human_path(to));
}

void train_tokenizer(const Parsed& parsed, const std::vector<std::filesystem::path>& files,
                     const std::filesystem::path& to) {
  const std::string family = parsed.get("pattern").value_or("gpt2");
  if (!text::expression_of(family)) {
    throw Error(ErrorCode::usage, fmt::format("--pattern {}: expected gpt2, llama3, qwen2, tekken or o200k", family));
  }
  std::vector<std::string> special = parsed.all("special");
  if (special.empty()) {
    special = {"<|endoftext|>"};
  }
  text::BpeTrainer trainer(family, std::move(special));
  for (const std::filesystem::path& path : files) {
    for_each_document(parsed, path, [&](std::string_view text) { trainer.add(text); });
  }
  const std::string json = trainer.train(parsed.integer("train", 0, 1, INT32_MAX));
  const std::int64_t tokens = text::BpeTokenizer::from_json(json, "what was trained").vocabulary();
  files::write_file_atomically(to, json);
  fmt::print("a vocabulary of {} tokens: {}\n", tokens, files::human_path(to));
}

void refuse_together(const Parsed& parsed, std::string_view option, std::initializer_list<const char*> others) {
  for (const char* other : others) {
    if (parsed.has(option) && parsed.has(other)) {
      throw Error(ErrorCode::usage, fmt::format("--{} has no effect with --{}: leave out one of them", other, option));
    }
  }
}

int tokenize(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "tokenize", words,
      {{.name = "tokenizer", .value = "PATH", .help = "a tokenizer.json, the folder of one, or a GGUF file"},
       {.name = "to",
        .value = "FILE",
        .help = "the file of the tokens, which [data] tokens reads: a .npy, or a .bin of nothing but tokens; with "
                "--train the tokenizer.json"},
       {.name = "field", .value = "KEY", .help = "the files are lines of JSON, whose texts have this key"},
       {.name = "eos", .value = "TOKEN", .help = "end each document with this token, such as <|endoftext|>"},
       {.name = "template", .help = "put the tokens of the tokenizer's post_processor around each document"},
       {.name = "replace-invalid", .help = "put U+FFFD in place of bytes that are not UTF-8, which are errors without"},
       {.name = "train", .value = "N", .help = "make a byte-level tokenizer of N tokens from the files"},
       {.name = "pattern",
        .value = "NAME",
        .help = "with --train, how text is cut into words: gpt2 (the default), llama3, qwen2, tekken or o200k"},
       {.name = "special",
        .value = "TOKEN",
        .help = "with --train, a special token; may be repeated (default <|endoftext|>)",
        .repeated = true},
       replace_option()},
      1, 1'000'000);
  if (parsed.help_shown) {
    return 0;
  }
  const bool trains = parsed.has("train");
  if (!parsed.has("to") || !(trains || parsed.has("tokenizer"))) {
    throw Error(ErrorCode::usage,
                fmt::format("tokenize: expected --to FILE and --tokenizer PATH, or --to FILE and --train "
                            "N: see shardrun tokenize --help"));
  }
  refuse_together(parsed, "train", {"tokenizer", "eos", "template"});
  refuse_together(parsed, "tokenizer", {"pattern", "special"});
  const std::vector<std::filesystem::path> files(parsed.positional.begin(), parsed.positional.end());
  const std::filesystem::path to = *parsed.get("to");
  if (trains ? to.extension() != ".json" : to.extension() != ".npy" && to.extension() != ".bin") {
    throw Error(ErrorCode::usage, fmt::format("--to {}: expected a name that ends in {}", to.native(),
                                              trains ? ".json" : ".npy or .bin"));
  }
  require_new(parsed, to);
  files::require_not_read(to, files);
  (trains ? train_tokenizer : encode_files)(parsed, files, to);
  return 0;
}

const RegisterCommand tokenize_command({.name = "tokenize",
                                        .arguments = "FILE...",
                                        .help = "turn text into a file of tokens with a tokenizer.json, or make that",
                                        .run = tokenize});

}  // namespace
}  // namespace shardrun::cli
