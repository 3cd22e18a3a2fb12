// The chat page of `shardrun serve`, as a person uses it.

#include "tests/browser/browser.h"
#include "tests/integration/served.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// A model whose answers may have thousands of tokens.
void make_long_model(const TemporaryFolder& folder) {
  make_model(folder);
  std::string config = read_file(folder / "chat/config.json");
  const std::string from = "\"max_position_embeddings\": 64";
  config.replace(config.find(from), from.size(), "\"max_position_embeddings\": 4096");
  write_file(folder / "chat/config.json", config);
}

/// The requests that do not go to the server.
std::vector<std::string> requests_elsewhere(const Browser& browser, const std::string& server) {
  std::vector<std::string> found = browser.requests();
  std::erase_if(found, [&](const std::string& address) { return address.starts_with(server); });
  return found;
}

constexpr const char* is_idle = "document.getElementById('stop').hidden";

}  // namespace

TEST_CASE("chat page: an answer streams in, can be stopped, and a new chat forgets", "[browser]") {
  const TemporaryFolder folder;
  make_long_model(folder);
  const Served served(folder.path());
  const std::string server = "http://127.0.0.1:" + std::to_string(served.port()) + "/";
  const Browser browser;
  browser.open(server);
  browser.await("document.title === 'chat'");
  CHECK(browser.text("#name") == "chat");

  SECTION("a short answer") {
    browser.click("details summary");
    browser.type("#tokens", "40");
    browser.type("#temperature", "0");
    browser.type("#text", "abc");
    browser.press("\uE007");
    browser.await("document.querySelector('#talk .assistant')");
    browser.await(is_idle);
    const Response expected = served.ask("POST", "/v1/chat/completions",
                                         R"({"messages": [{"role": "user", "content": "abc"}], "max_tokens": 40,
                                             "temperature": 0})");
    const std::string answer(expected.json().at("choices").at(0).at("message").at("content").as_string());
    CHECK(browser.text("#talk .user") == "abc");
    CHECK(browser.text("#talk .assistant") == answer);

    // The next question takes the conversation with it; a new chat does not.
    browser.type("#text", "d");
    browser.click("#send");
    browser.await("document.querySelectorAll('#talk .user').length === 2");
    browser.await(is_idle);
    browser.click("#reset");
    CHECK(browser.text("#talk").empty());
    browser.type("#text", "abc");
    browser.click("#send");
    browser.await("document.querySelector('#talk .assistant')");
    browser.await(is_idle);
    CHECK(browser.text("#talk .assistant") == answer);
  }

  SECTION("an answer that is stopped") {
    // Presses the button when the first part of the answer has come.
    static_cast<void>(browser.run(R"(new MutationObserver((all, self) => {
        const answer = document.querySelector('#talk .assistant');
        if (!answer || answer.textContent === '…') return;
        self.disconnect();
        document.getElementById('stop').click();
      }).observe(document.getElementById('talk'), {childList: true, subtree: true, characterData: true});)"));
    browser.click("details summary");
    browser.type("#temperature", "0");
    browser.type("#text", "abc");
    browser.click("#send");
    browser.await("document.querySelector('#talk .assistant')");
    browser.await(is_idle);
    // By itself the answer would go on to the end of the context: 4,092 letters.
    const std::string answer = browser.text("#talk .assistant");
    CHECK_FALSE(answer.empty());
    CHECK(answer.size() < 3'000);
    CHECK(browser.text("#talk .error").empty());
    CHECK(browser.run("return document.activeElement.id") == "text");
    served.await_metric("prompts_in_work", "0");
  }

  SECTION("a refusal is shown") {
    browser.click("details summary");
    browser.type("#temperature", "-1");
    browser.type("#text", "abc");
    browser.click("#send");
    browser.await("document.querySelector('#talk .error')");
    CHECK_FALSE(browser.text("#talk .error").empty());
    browser.await(is_idle);
    // The browser itself notes the status of the answer.
    CHECK(browser.complaints().size() == 1);
  }

  for (const int width : {375, 1280}) {
    browser.size(width, 700);
    INFO(width);
    CHECK(browser.run("return document.documentElement.scrollWidth <= innerWidth").as_bool());
    CHECK(browser
              .run("const box = document.getElementById('send').getBoundingClientRect();"
                   "return box.bottom <= innerHeight && box.right <= innerWidth")
              .as_bool());
  }
  CHECK(browser.complaints() == std::vector<std::string>());
  CHECK(requests_elsewhere(browser, server) == std::vector<std::string>());
}
