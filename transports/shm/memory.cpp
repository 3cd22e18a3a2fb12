#include "memory.h"

#include <fcntl.h>
#include <shardrun/sdk/op.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace shm {

using shardrun::sdk::TransportError;

namespace {

[[noreturn]] void fail(std::int32_t status, const std::string& what) {
  throw TransportError(status, what + ": " + std::strerror(errno));
}

}  // namespace

Mapping::Mapping(int descriptor, std::size_t bytes) : descriptor_(descriptor), bytes_(bytes) {
  struct stat status {};
  void* mapped = bytes == 0 ? nullptr : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED || fstat(descriptor, &status) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail(SR_INTERNAL, "shared memory of " + std::to_string(bytes) + " bytes cannot be mapped");
  }
  data_ = static_cast<std::byte*>(mapped);
  inode_ = status.st_ino;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
  close(descriptor_);
}

std::unique_ptr<Mapping> Mapping::create(std::size_t bytes) {
  const int descriptor = memfd_create("shardrun-shm", MFD_CLOEXEC);
  if (descriptor < 0) {
    fail(SR_INTERNAL, "memfd_create");
  }
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail(SR_INTERNAL, "shared memory of " + std::to_string(bytes) + " bytes");
  }
  return std::unique_ptr<Mapping>(new Mapping(descriptor, bytes));
}

/// /proc/PID/fd rather than a socket that passes descriptors: nothing has to listen, and the kernel checks that both
/// processes are one user's.
std::unique_ptr<Mapping> Mapping::open(pid_t pid, int descriptor, std::uint64_t inode) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    fail(errno == ENOENT ? SR_PEER_LOST : SR_INTERNAL, "memory of process " + std::to_string(pid) + " (" + path + ")");
  }
  struct stat status {};
  if (fstat(opened, &status) != 0 || status.st_ino != inode) {
    close(opened);
    throw TransportError(SR_PEER_LOST, "process " + std::to_string(pid) + " has another file as descriptor " +
                                           std::to_string(descriptor) + " than it announced: it is not the peer");
  }
  return std::unique_ptr<Mapping>(new Mapping(opened, static_cast<std::size_t>(status.st_size)));
}

std::byte* Peers::resolve(const MemoryRef& ref) {
  if (ref.bytes == 0) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Mapping>& mapping = mappings_[{ref.pid, ref.descriptor, ref.inode}];
  if (mapping == nullptr) {
    mapping = Mapping::open(ref.pid, ref.descriptor, ref.inode);
  }
  if (ref.offset > mapping->bytes() || ref.bytes > mapping->bytes() - ref.offset) {
    throw TransportError(SR_INTERNAL, "process " + std::to_string(ref.pid) + " announced " + std::to_string(ref.bytes) +
                                          " bytes that its memory does not have");
  }
  return mapping->data() + ref.offset;
}

}  // namespace shm
