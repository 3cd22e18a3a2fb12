#pragma once

#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"

namespace shardrun::test {

/// A copy of a fixture with a tokenizer of its 40 tokens: <s>, </s> and letters. `post_processor`: JSON.
inline std::filesystem::path with_tokenizer(const TemporaryFolder& folder, const std::string& post_processor) {
  std::filesystem::remove_all(folder / "chat");
  std::filesystem::copy(std::filesystem::path(SHARDRUN_HUB_FIXTURES) / "llama", folder / "chat");
  std::string vocab;
  for (int token = 0; token < 40; ++token) {
    const std::string text = token == 0   ? "<s>"
                             : token == 1 ? "</s>"
                                          : std::string(1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL"[token - 2]);
    vocab += (token == 0 ? "" : ",") + ("\"" + text + "\":" + std::to_string(token));
  }
  const auto added = [](int id, const std::string& text) {
    return R"({"id":)" + std::to_string(id) + R"(,"content":")" + text +
           R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  };
  write_file(folder / "chat/tokenizer.json", R"({"added_tokens":[)" + added(0, "<s>") + "," + added(1, "</s>") +
                                                 R"(],"post_processor":)" + post_processor +
                                                 R"(,"decoder":{"type":"Fuse"},"model":{"type":"BPE","vocab":{)" +
                                                 vocab + R"(},"merges":[]}})");
  return folder / "chat";
}

}  // namespace shardrun::test
