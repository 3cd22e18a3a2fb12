#pragma once

#include <sys/types.h>

#include <boost/json.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "core/launch/process.h"
#include "tests/support/temporary_folder.h"

namespace shardrun::test {

/// A Chromium without a screen, which chromedriver drives over the loopback (W3C WebDriver). Functions throw
/// std::runtime_error with what WebDriver said.
class Browser {
 public:
  Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;
  /// Ends the browser and chromedriver.
  ~Browser();

  void open(const std::string& address) const;
  void size(int width, int height) const;
  void scheme(const std::string& light_or_dark) const;
  /// What a JavaScript function of this body returns.
  [[nodiscard]] boost::json::value run(const std::string& body, boost::json::array arguments = {}) const;
  /// The text of an element; of none: nothing.
  [[nodiscard]] std::string text(const std::string& selector) const;
  /// Waits until a JavaScript expression is true. Asks at each frame of the page, for up to 30 s.
  void await(const std::string& expression) const;
  /// Presses a key and releases it. Those without a character have one of WebDriver's code points.
  void press(const std::string& key) const;
  /// Clicks where the pointer finds the element.
  void click(const std::string& selector) const;
  /// Writes text into the element.
  void type(const std::string& selector, const std::string& text) const;

  /// What the console has shown since the last call: errors, warnings and refused requests.
  [[nodiscard]] std::vector<std::string> complaints() const;
  /// The addresses that pages have asked for since the last call, without data: and the pages themselves.
  [[nodiscard]] std::vector<std::string> requests() const;

 private:
  [[nodiscard]] boost::json::value ask(const std::string& method, const std::string& path,
                                       const boost::json::value& body = nullptr) const;
  [[nodiscard]] boost::json::value in_session(const std::string& path, const boost::json::value& body) const;
  [[nodiscard]] std::string element(const std::string& selector) const;
  void devtools(const std::string& command, const boost::json::object& parameters) const;

  TemporaryFolder folder_;  ///< what the browser writes
  launch::StartedProcess driver_;
  int port_ = 0;
  std::string session_;
};

}  // namespace shardrun::test
