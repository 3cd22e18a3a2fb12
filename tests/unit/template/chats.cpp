// Conversations are rendered as transformers renders them.
// bench/fixtures/make_chat_templates.py wrote what is expected.

#include "core/template/chat.h"

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::templates;
using Catch::Matchers::Contains;

namespace {

const std::filesystem::path chats = std::filesystem::path(SHARDRUN_FIXTURES) / "chats.json";

Conversation conversation_of(const boost::json::object& chat) {
  Conversation made;
  made.messages = chat.at("messages").as_array();
  const auto value = [&](std::string_view key) { return chat.contains(key) ? chat.at(key) : boost::json::value(); };
  made.tools = value("tools");
  made.documents = value("documents");
  made.adds_generation_prompt = !chat.contains("add_generation_prompt");
  made.settings = chat.contains("settings") ? chat.at("settings").as_object() : boost::json::object();
  return made;
}

}  // namespace

TEST_CASE("conversations are rendered byte for byte as transformers renders them", "[template]") {
  const boost::json::value fixture = boost::json::parse(read_file(chats));
  int rendered = 0;
  int refused = 0;
  for (const auto& [name, text] : fixture.at("templates").as_object()) {
    ChatFormat format;
    format.templates = {{"default", std::string(text.as_string()), std::string(name)}};
    format.special_tokens = fixture.at("special_tokens").as_object();
    for (const auto& [chat, conversation] : fixture.at("chats").as_object()) {
      CAPTURE(std::string(name), std::string(chat));
      const boost::json::value& expected = fixture.at("expected").at(name).at(chat);
      const Conversation made = conversation_of(conversation.as_object());
      const auto render = [&] { return render_chat(format, made); };
      if (expected.is_null()) {
        ++refused;
        CHECK_THROWS_AS(render(), Error);
      } else {
        ++rendered;
        CHECK(render() == std::string(expected.as_string()));
      }
    }
  }
  CHECK(rendered > 200);
  CHECK(refused > 10);
}

TEST_CASE("a folder's templates, special tokens and end tokens are read", "[template]") {
  const TemporaryFolder folder;
  write_file(folder.path() / "tokenizer_config.json",
             R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null, "add_bos_token": true,
                 "chat_template": [{"name": "default", "template": "D{{ bos_token }}{{ pad_token }}"},
                                   {"name": "tool_use", "template": "T{{ eos_token }}"}]})");
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id": [2, 7]})");
  const ChatFormat format = read_chat_format(folder.path());
  CHECK(format.end_tokens == std::vector<std::int64_t>{2, 7});
  CHECK(format.adds_bos == true);
  Conversation conversation;
  CHECK_THAT(error_of([&] { (void)render_chat(format, conversation); }), Contains("the conversation is empty"));
  conversation.messages = {boost::json::object{{"role", "user"}, {"content", "x"}}};
  CHECK(render_chat(format, conversation) == "D<s>");
  CHECK(render_chat(format, conversation, "tool_use") == "T</s>");
  CHECK_THAT(error_of([&] { (void)render_chat(format, conversation, "rag"); }),
             Contains("no chat template 'rag'; it has default, tool_use: ") && Contains("tokenizer_config.json, "));
  conversation.tools = boost::json::array{};
  CHECK(render_chat(format, conversation) == "T</s>");

  write_file(folder.path() / "tokenizer_config.json", R"({"chat_template": [{"name": "", "template": "x"}]})");
  CHECK_THAT(error_of([&] { (void)read_chat_format(folder.path()); }),
             Contains("tokenizer_config.json: chat_template: expected a text"));

  write_file(folder.path() / "chat_template.jinja", "J{{ messages[0].content }}\n");
  CHECK(render_chat(read_chat_format(folder.path()), conversation) == "Jx");
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id": "2"})");
  CHECK_THAT(error_of([&] { (void)read_chat_format(folder.path()); }), Contains("eos_token_id: expected a token"));
}

TEST_CASE("a folder without a template is refused: none is guessed", "[template]") {
  const TemporaryFolder folder;
  Conversation conversation;
  conversation.messages = {boost::json::object{{"role", "user"}, {"content", "x"}}};
  CHECK_THAT(error_of([&] { (void)render_chat(read_chat_format(folder.path()), conversation); }),
             Contains("the model has no chat template"));
}
