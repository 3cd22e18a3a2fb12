#include "core/device/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/memory/layout.h"

namespace shardrun::device {
namespace {

using memory::page_bytes;

[[noreturn]] void fail(const char* what, std::uint64_t bytes) {
  const int cause = errno;
  throw Error(ErrorCode::io,
              fmt::format("arena of {} bytes: {}: {}; {}", bytes, what, std::strerror(cause),
                          cause == EFBIG ? "the arena is a file in memory: raise the limit of a file's size (ulimit -f)"
                                         : "make the model, batch or context smaller, or free memory"));
}

}  // namespace

HostMemory::HostMemory(std::uint64_t bytes) : mapped_(memory::align_up(bytes == 0 ? 1 : bytes, page_bytes)) {
  descriptor_ = memfd_create("shardrun-arena", MFD_CLOEXEC);
  if (descriptor_ < 0) {
    fail("memfd_create", bytes);
  }
  if (ftruncate(descriptor_, static_cast<off_t>(mapped_)) != 0) {
    close(descriptor_);
    fail("ftruncate", bytes);
  }
  void* reserved =
      mmap(nullptr, mapped_ + 2 * page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    close(descriptor_);
    fail("mmap of the address range", bytes);
  }
  reservation_ = static_cast<std::byte*>(reserved);
  void* mapped =
      mmap(reservation_ + page_bytes, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    munmap(reservation_, mapped_ + 2 * page_bytes);
    close(descriptor_);
    fail("mmap", bytes);
  }
  set_range(static_cast<std::byte*>(mapped), bytes);
}

HostMemory::~HostMemory() {
  munmap(reservation_, mapped_ + 2 * page_bytes);
  close(descriptor_);
}

std::uint64_t HostMemory::touched_bytes() const {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0) {
    throw Error(ErrorCode::io, fmt::format("arena: fstat: {}", std::strerror(errno)));
  }
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

}  // namespace shardrun::device
