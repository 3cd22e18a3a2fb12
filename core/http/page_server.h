#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/endpoint.h"
#include "core/http/connection.h"

namespace shardrun::http {

/// Serves pages to GET and HEAD, on a thread of its own, while this object lives. The number of connections and their
/// times are limited. At the limit, the connection that has been silent longest is closed. At a loopback address, it
/// answers only requests to this host, because pages of other sites in a browser here must not read it.
class PageServer {
 public:
  /// Returns the page at a path (without a query), or nothing: 404. Called on the server's thread, one request at a
  /// time. If it throws, the answer is 500.
  using Handler = std::function<std::optional<Response>(const std::string& path)>;

  /// Listens. Throws Error{usage} "cannot listen at HOST:PORT: WHY: WHAT TO DO".
  PageServer(const Endpoint& endpoint, Handler handler);
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;
  /// Ends the thread once the handler has returned, and closes all connections.
  ~PageServer();

  /// The URL at which the server listens, with the port that was found, such as "http://127.0.0.1:9100".
  [[nodiscard]] const std::string& address() const noexcept;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace shardrun::http
