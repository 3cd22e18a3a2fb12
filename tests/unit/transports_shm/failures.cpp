#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_shm/arena.h"
#include "tests/unit/transports_shm/stand_in.h"
#include "transports/shm/memory.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// The error of polling, without ever waiting, an op that does not become complete.
std::string polled_error_of(plugins::TransportOp& op) {
  return error_of([&] {
    while (!op.test()) {
      std::this_thread::yield();
    }
  });
}

}  // namespace

TEST_CASE("shm: polling an op reports that a peer has failed or ended") {
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  const bool ends = GENERATE(false, true);
  std::string error;
  StandInHost host(1);
  run_ranks(host, "shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, data.size(), data);
    request.flags = flags;
    auto op = group.prepare({request}, after(30));
    if (rank.rank() == 1 && ends) {
      host.end_process();
    } else if (rank.rank() == 1) {
      group.abort("enough");
    }
    rank.meet("one does not go on");
    if (rank.rank() == 0) {
      op.start(after(30));
      error = polled_error_of(op);
    }
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("group all: member 1 (rank 1") && Contains(ends ? "is gone" : "has failed"));
}

TEST_CASE("shm: each of several polled ops reports its own peers") {
  std::string error;
  run_ranks("shm", 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto request = request_of(SR_OP_RECV, 1, data.size(), data, 1);
    request.flags = SR_OP_FLAG_BLOCKING;
    auto barrier_request = request_of(SR_OP_BARRIER, 2, 0, data);
    barrier_request.flags = SR_OP_FLAG_BLOCKING;
    auto barrier = group.prepare({barrier_request}, after(30));
    if (rank.rank() == 0) {
      auto receive = group.prepare({request}, after(30));
      receive.start(after(30));
      barrier.start(after(30));
      rank.meet("one has failed");
      const std::int64_t latest = after(5);
      error = error_of([&] {
        // The message's sender is well, and each time the receive is polled first.
        while (!receive.test() && !barrier.test() && plugins::transport_clock() < latest) {
          std::this_thread::yield();
        }
      });
      rank.meet("end");
      return;
    }
    if (rank.rank() == 2) {
      group.abort("enough");
    }
    rank.meet("one has failed");
    rank.meet("end");
  });
  CHECK_THAT(error, Contains("member 2 (rank 2") && Contains("has failed"));
}

TEST_CASE("shm: a complete op stays complete if its group fails later") {
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  std::array<std::string, 2> errors;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, data.size(), data);
    request.flags = flags;
    auto op = group.prepare({request}, after(30));
    run(op);
    rank.meet("done");
    group.abort("enough");
    errors[rank.rank()] = error_of([&] {
      if (!op.test() || !op.wait(after(1))) {
        throw Error(ErrorCode::internal, "it is not complete any more");
      }
    });
    rank.meet("end");
  });
  CHECK(errors[0] == "nothing");
  CHECK(errors[1] == "nothing");
}

TEST_CASE("shm: a batch that another start carries out does not count as its last run") {
  std::string error;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<std::vector<float>> data(3, std::vector<float>(10));
    std::vector<plugins::TransportOp> ops;
    for (std::uint64_t i = 0; i < 3; ++i) {
      auto request = request_of(rank.rank() == 0 ? SR_OP_RECV : SR_OP_SEND, i + 1, 10, data[i], 1 - rank.rank());
      request.flags = i == 0 ? 0 : SR_OP_FLAG_BLOCKING;
      ops.push_back(group.prepare({request}, after(30)));
    }
    // While the first op is under way on the worker, the second one is there too, and is completed there.
    ops[0].start(after(30));
    ops[1].start(after(30));
    finish(ops[0]);
    finish(ops[1]);
    rank.meet("the second has run on the worker");
    if (rank.rank() == 0) {
      ops[1].start(after(30));
      group.abort("enough");
      (void)error_of([&] { ops[2].start(after(30)); });
      error = error_of([&] { (void)ops[1].test(); });
    }
    rank.meet("end");
    group.abort("the other rank has aborted");
  });
  CHECK_THAT(error, Contains("enough"));
}

TEST_CASE("shm: a peer that ends after doing its part is not reported") {
  const std::uint32_t opcode = GENERATE(SR_OP_BARRIER, SR_OP_SEND);
  std::string error = "not run";
  const std::array<Arena, 2> arenas;
  StandInHost host(1);
  run_ranks(host, "shm", 2, [&](Rank& rank) {
    const Arena& arena = arenas[rank.rank()];
    const std::uint64_t registration =
        rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor());
    auto group = rank.group();
    std::vector<float> none;
    const std::uint32_t own = opcode == SR_OP_SEND && rank.rank() == 1 ? SR_OP_RECV : opcode;
    // The data is too much to be enclosed: the sender waits until it has been read.
    auto request = request_of(own, 1, arena.bytes() / sizeof(float), none, 1 - rank.rank());
    request.send = request.recv = sdk::Buffer{arena.data(), arena.bytes(), registration};
    auto op = group.prepare({request}, after(30));
    rank.meet("all is prepared");
    if (rank.rank() == 0) {
      // Rank 0 has seen that the op is not complete, and is about to look whether its peer is there.
      host.at_next_look([&] {
        (void)error_of([&] {
          host.meet("rank 0 looks", 2);
          host.meet("rank 1 has ended", 2);
        });
      });
      error = error_of([&] { run(op); });
    } else {
      rank.meet("rank 0 looks");
      run(op);
      host.end_process();
      rank.meet("rank 1 has ended");
    }
    rank.meet("end");
  });
  CHECK(error == "nothing");
}

TEST_CASE("shm: sends and receives go on when a third member fails") {
  const bool ends = GENERATE(true, false);
  float got = 0;
  std::array<std::string, 3> errors;
  StandInHost host(0);
  run_ranks(host, "shm", 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(10, static_cast<float>(rank.rank()));
    auto barrier = group.prepare({request_of(SR_OP_BARRIER, 1, 0, data)}, after(30));
    if (rank.rank() == 0) {
      rank.meet("all is prepared");
      ends ? host.end_process() : group.abort("enough");
      rank.meet("one has left");
      rank.meet("end");
      return;
    }
    const bool sends = rank.rank() == 1;
    auto transfer =
        group.prepare({request_of(sends ? SR_OP_SEND : SR_OP_RECV, 2, 10, data, 3 - rank.rank())}, after(30));
    rank.meet("all is prepared");
    rank.meet("one has left");
    if (sends) {
      host.await_looks(2);  // the receiver's: before its second look, it has found nothing
    }
    run(transfer);
    if (!sends) {
      got = data[0];
    }
    host.meet("exchanged", 2);
    errors[rank.rank()] = group.error().value_or("") + error_of([&] { run(barrier); });
    rank.meet("end");
  });
  CHECK(got == 1);
  // The member that notices first has failed too, so the other one may name it.
  const std::string& told = errors[1].find("member 0") != std::string::npos ? errors[1] : errors[2];
  CHECK_THAT(told, Contains("group all: member 0 (rank 0") && Contains(ends ? "is gone" : "has failed"));
  CHECK_THAT(errors[1] + errors[2], !Contains("nothing"));
}

TEST_CASE("shm: a peer that ends after doing its part is not reported while another peer's part is missing") {
  std::string error = "not run";
  std::array<float, 2> got = {};
  StandInHost host(1);
  run_ranks(host, "shm", 3, [&](Rank& rank) {
    auto group = rank.group();
    rank.meet("all are connected");  // a rank that ended earlier would be gone for one that still connects
    std::array<std::vector<float>, 2> data = {std::vector<float>(10, static_cast<float>(rank.rank())),
                                              std::vector<float>(10)};
    if (rank.rank() == 0) {
      auto both = group.prepare({request_of(SR_OP_RECV, 1, 10, data[0], 1), request_of(SR_OP_RECV, 1, 10, data[1], 2)},
                                after(30));
      // Rank 0 has seen that nothing has come, and is about to look whether its peers are there.
      host.at_next_look([&] {
        (void)error_of([&] {
          host.meet("rank 0 looks", 2);
          host.meet("rank 1 has ended", 2);
        });
      });
      error = error_of([&] { run(both); });
      got = {data[0][0], data[1][0]};
    } else {
      auto transfer = group.prepare({request_of(SR_OP_SEND, 1, 10, data[0], 0)}, after(30));
      if (rank.rank() == 1) {
        host.meet("rank 0 looks", 2);
        run(transfer);  // so short that it is done as soon as it is posted
        host.end_process();
        host.meet("rank 1 has ended", 2);
      }
      host.meet("rank 0 has the message of rank 1", 2);
      if (rank.rank() == 2) {
        (void)error_of([&] { run(transfer); });
      }
    }
    rank.meet("end");
  });
  CHECK(error == "nothing");
  CHECK(got == std::array<float, 2>{1, 2});
}

TEST_CASE("shm: a peer that has ended is lost, even if the kernel reports another error for its memory") {
  ErrorCode code = ErrorCode::internal;
  std::string message;
  const Arena arena;
  StandInHost host(1);
  run_ranks(host, "shm", 2, [&](Rank& rank) {
    const std::uint64_t registration =
        rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor());
    auto group = rank.group();
    rank.meet("all are connected");
    std::vector<float> data(arena.bytes() / sizeof(float));
    auto request = request_of(rank.rank() == 0 ? SR_OP_RECV : SR_OP_SEND, 1, data.size(), data, 1 - rank.rank());
    if (rank.rank() == 1) {
      request.send = sdk::Buffer{arena.data(), arena.bytes(), registration};
    }
    auto transfer = group.prepare({request}, after(30));
    if (rank.rank() == 1) {
      transfer.start(after(30));
      host.await_looks(1);  // this rank's own: by then the message is posted
      // A socket cannot be opened by name, just as its user cannot open a zombie's files.
      const shardrun::shm_transport::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
      if (dup2(socket.number(), arena.descriptor()) != arena.descriptor()) {
        throw Error(ErrorCode::internal, "no socket");
      }
      host.end_process();
    }
    rank.meet("rank 1 has ended");
    if (rank.rank() == 0) {
      try {
        run(transfer);
      } catch (const Error& error) {
        code = error.code();
        message = error.message();
      }
    }
    rank.meet("end");
  });
  CHECK(code == ErrorCode::peer_lost);
  CHECK_THAT(message, Contains("member 1 (rank 1") && Contains(") is gone"));
}

namespace {

/// A store in which the memory that rank 0 announces seems to be another process's.
class AnnouncingHost final : public SharedHost {
 public:
  explicit AnnouncingHost(pid_t process) : process_(process) {}
  void store_set(const std::string& key, std::string value) override {
    const bool is_memory = key.ends_with("control");
    SharedHost::store_set(key, is_memory ? std::to_string(process_) + value.substr(value.find(' ')) : value);
  }

 private:
  pid_t process_;
};

}  // namespace

TEST_CASE("shm: a first member that ended before sharing its memory is named as lost") {
  IdleProcess process;
  AnnouncingHost host(process.pid());
  const std::string gone = std::to_string(process.pid());
  const bool is_zombie = GENERATE(true, false);
  is_zombie ? process.die() : process.end();
  Rank rank(host, "shm", 1, 2);
  host.store_set("shm/1/0.1./0/control", "0 1000 1");
  CHECK_THAT(error_of([&] { (void)rank.group(); }), Contains("process " + gone + " of member 0 (rank 0) is gone"));
}

TEST_CASE("shm: freeing a running sum waits until no peer writes its memory") {
  // There are more members than cores: some have yet to write their shares when others have written theirs.
  constexpr std::uint32_t n = 6;
  constexpr int rounds = 72;
  constexpr auto count = depth<std::size_t>(1'000'000, 1'000'000, 200'000);
  std::deque<Arena> arenas;
  for (std::uint32_t i = 0; i < n; ++i) {
    arenas.emplace_back(count * sizeof(float));
  }
  int written = 0;
  run_ranks("shm", n, [&](Rank& rank) {
    float* const data = arenas[rank.rank()].data();
    const std::uint64_t registration =
        rank.transport().register_memory(data, arenas[rank.rank()].bytes(), arenas[rank.rank()].descriptor());
    std::chrono::steady_clock::duration whole = {};
    for (int round = 0; round < rounds; ++round) {
      auto group = rank.group(static_cast<std::uint64_t>(round));
      std::vector<float> none;
      auto request = request_of(SR_OP_ALL_REDUCE, 1, count, none);
      request.send = request.recv = sdk::Buffer{data, count * sizeof(float), registration};
      auto op = std::make_optional(group.prepare(std::vector{request}, after(30)));
      std::fill(data, data + count, 1.0F);
      rank.meet("filled " + std::to_string(round));
      const auto begun = std::chrono::steady_clock::now();
      op->start(after(30));
      if (rank.rank() == 0 && round > 0) {
        std::this_thread::sleep_for(whole * round / rounds);  // each abort comes at another moment of the sum
        group.abort("enough");
        op.reset();
        std::fill(data, data + count, -1.0F);
      } else {
        static_cast<void>(error_of([&] { finish(*op); }));
        whole = std::chrono::steady_clock::now() - begun;
      }
      rank.meet("over " + std::to_string(round));
      if (rank.rank() == 0 && round > 0) {
        written += std::all_of(data, data + count, [](float each) { return each == -1.0F; }) ? 0 : 1;
      }
      op.reset();
    }
    rank.meet("end");
  });
  CHECK(written == 0);
}
