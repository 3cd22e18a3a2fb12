#include <cstdint>
#include <vector>

#include "all_sdk_headers.h"
#include "tests/support/catch.h"

// Values of the SDK that are written in their C form and read again.

using namespace shardrun::sdk;

TEST_CASE("ops come back from their C form as they were", "[sdk]") {
  std::uint32_t memory[4];
  const OpSpec whole = {.opcode = SR_OP_ALL_TO_ALLV,
                        .dtype = SR_DTYPE_BF16,
                        .reduction = SR_REDUCE_MAX,
                        .peer = 4,
                        .flags = SR_OP_FLAG_IN_ORDER,
                        .id = 5,
                        .count = 6,
                        .send_counts = {1, 2},
                        .recv_counts = {3, 4},
                        .send = Buffer{&memory[0], 7, 8, SR_MEMORY_PINNED, 9},
                        .recv = Buffer{&memory[1], 10, 11, SR_MEMORY_CUDA, 12},
                        .scratch = Buffer{&memory[2], 13, 14, SR_MEMORY_HOST, 15},
                        .label = "w"};
  const std::vector<OpSpec> ops = {whole, {.opcode = SR_OP_RECV, .recv = Buffer{.data = &memory[3]}}};

  const detail::WrittenOps written(ops);

  std::vector<OpSpec> read;
  for_each(written.data(), written.size(), sizeof(sr_op),
           [&](const sr_op& raw) { read.push_back(detail::read(raw, 2)); });
  CHECK(read == ops);
  CHECK(written.data()[1].send_counts == nullptr);
}
