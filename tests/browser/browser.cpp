#include "tests/browser/browser.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace shardrun::test {
namespace {

namespace json = boost::json;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

/// The port in the line that says that chromedriver has started.
int read_port(int output) {
  const std::string_view before = "started successfully on port ";
  std::string text;
  for (char byte = 0; ::read(output, &byte, 1) == 1;) {
    text += byte;
    const std::size_t at = text.find(before);
    if (at != std::string::npos && byte == '\n') {
      return std::stoi(text.substr(at + before.size()));
    }
  }
  throw std::runtime_error("chromedriver did not say its port: " + text);
}

}  // namespace

Browser::Browser() {
  const std::string home = folder_.path();
  driver_ = launch::start_process({.program = SHARDRUN_CHROMEDRIVER,
                                   .arguments = {SHARDRUN_CHROMEDRIVER, "--port=0"},
                                   .environment = {"PATH=/usr/bin:/bin", "HOME=" + home, "TMPDIR=" + home}});
  port_ = read_port(driver_.output.get());
  json::array arguments = {"--headless=new",
                           "--disable-gpu",
                           "--disable-dev-shm-usage",
                           "--hide-scrollbars",
                           "--no-first-run",
                           "--disable-background-networking",
                           "--disable-component-update"};
  if (::geteuid() == 0) {
    arguments.emplace_back("--no-sandbox");  // its sandbox does not work for root
  }
  const json::value wanted = {{"browserName", "chrome"},
                              {"goog:chromeOptions", {{"binary", SHARDRUN_CHROMIUM}, {"args", arguments}}},
                              {"goog:loggingPrefs", {{"browser", "ALL"}, {"performance", "ALL"}}}};
  const json::value made = ask("POST", "/session", {{"capabilities", {{"alwaysMatch", wanted}}}});
  session_ = std::string(made.at("sessionId").as_string());
}

Browser::~Browser() {
  try {
    static_cast<void>(ask("DELETE", "/session/" + session_));
  } catch (const std::exception&) {  // it is ended below
  }
  ::kill(-driver_.pid, SIGKILL);
  ::waitpid(driver_.pid, nullptr, 0);
}

json::value Browser::ask(const std::string& method, const std::string& path, const json::value& body) const {
  boost::asio::io_context context;
  tcp::socket socket(context);
  socket.connect({boost::asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port_)});
  const timeval patience = {.tv_sec = 120, .tv_usec = 0};
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);

  http::request<http::string_body> request(http::string_to_verb(method), path, 11);
  request.set(http::field::host, "127.0.0.1");
  request.set(http::field::content_type, "application/json");
  request.keep_alive(false);
  request.body() = body.is_null() ? "" : json::serialize(body);
  request.prepare_payload();
  http::write(socket, request);

  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> response;
  response.body_limit(std::uint64_t{256} << 20);
  http::read(socket, buffer, response);
  const json::value value = json::parse(response.get().body()).at("value");
  if (response.get().result() != http::status::ok) {
    throw std::runtime_error(path + ": " + std::string(value.at("message").as_string()));
  }
  return value;
}

json::value Browser::in_session(const std::string& path, const json::value& body) const {
  return ask("POST", "/session/" + session_ + path, body);
}

void Browser::devtools(const std::string& command, const json::object& parameters) const {
  static_cast<void>(in_session("/goog/cdp/execute", {{"cmd", command}, {"params", parameters}}));
}

void Browser::open(const std::string& address) const { static_cast<void>(in_session("/url", {{"url", address}})); }

void Browser::size(int width, int height) const {
  devtools("Emulation.setDeviceMetricsOverride",
           {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
}

void Browser::scheme(const std::string& light_or_dark) const {
  devtools("Emulation.setEmulatedMedia",
           {{"features", json::array{{{"name", "prefers-color-scheme"}, {"value", light_or_dark}}}}});
}

json::value Browser::run(const std::string& body, json::array arguments) const {
  return in_session("/execute/sync", {{"script", body}, {"args", std::move(arguments)}});
}

std::string Browser::text(const std::string& selector) const {
  const json::value text =
      run("const found = document.querySelector(arguments[0]); return found ? found.textContent : '';", {selector});
  return std::string(text.as_string());
}

void Browser::await(const std::string& expression) const {
  const std::string body = "const done = arguments[0]; const ask = () => { if (" + expression +
                           ") done(true); else requestAnimationFrame(ask); }; ask();";
  try {
    static_cast<void>(in_session("/execute/async", {{"script", body}, {"args", json::array()}}));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("never true: " + expression + " (" + error.what() + ")");
  }
}

std::string Browser::element(const std::string& selector) const {
  const json::value found = in_session("/element", {{"using", "css selector"}, {"value", selector}});
  return std::string(found.as_object().begin()->value().as_string());
}

void Browser::press(const std::string& key) const {
  const json::array strokes = {{{"type", "keyDown"}, {"value", key}}, {{"type", "keyUp"}, {"value", key}}};
  const json::object keyboard = {{"type", "key"}, {"id", "keyboard"}, {"actions", strokes}};
  static_cast<void>(in_session("/actions", {{"actions", json::array{keyboard}}}));
}

void Browser::click(const std::string& selector) const {
  static_cast<void>(in_session("/element/" + element(selector) + "/click", json::object()));
}

void Browser::type(const std::string& selector, const std::string& text) const {
  static_cast<void>(in_session("/element/" + element(selector) + "/value", {{"text", text}}));
}

std::vector<std::string> Browser::complaints() const {
  std::vector<std::string> found;
  const json::value log = in_session("/se/log", {{"type", "browser"}});
  for (const json::value& entry : log.as_array()) {
    const std::string level(entry.at("level").as_string());
    if (level == "WARNING" || level == "SEVERE") {
      found.emplace_back(entry.at("message").as_string());
    }
  }
  return found;
}

std::vector<std::string> Browser::requests() const {
  std::vector<std::string> found;
  const json::value log = in_session("/se/log", {{"type", "performance"}});
  for (const json::value& entry : log.as_array()) {
    const json::value message = json::parse(entry.at("message").as_string()).at("message");
    if (message.at("method") != "Network.requestWillBeSent") {
      continue;
    }
    const json::object& parameters = message.at("params").as_object();
    const std::string address(parameters.at("request").at("url").as_string());
    const bool is_page = parameters.contains("type") && parameters.at("type") == "Document";
    if (!is_page && !address.starts_with("data:")) {
      found.push_back(address);
    }
  }
  return found;
}

}  // namespace shardrun::test
