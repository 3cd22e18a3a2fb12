// A fake of the driver's virtual memory. Memory must be created, mapped and made accessible, each in whole pieces,
// before work may use it.

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/support/cuda/fake_cuda.h"

namespace shardrun::test::fake_cuda {
namespace {

constexpr std::size_t piece = std::size_t{64} << 10U;

struct Made {
  std::size_t bytes = 0;
  CUdeviceptr mapped_at = 0;
  bool released = false;
};

struct Known {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, Made> made;
  std::map<CUdeviceptr, std::size_t> reserved;
  CUmemGenericAllocationHandle latest = 0;
};

Known& known() {
  static Known only;
  return only;
}

void* memory_at(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = virtual_memory() != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = piece;
  return CUDA_SUCCESS;
}

/// Creates memory. It must be shareable and accessible to network cards (unless the settings refuse that), because NCCL
/// registers no other memory.
CUresult create(CUmemGenericAllocationHandle* made, std::size_t bytes, const CUmemAllocationProp* of,
                unsigned long long flags) {
  const bool reaches_network_cards = of->allocFlags.gpuDirectRDMACapable == 1;
  if (virtual_memory() == 3 || (virtual_memory() == 2 && reaches_network_cards)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const bool can_be_registered = of->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                                 (reaches_network_cards || virtual_memory() == 2);
  if (of->type != CU_MEM_ALLOCATION_TYPE_PINNED || !can_be_registered || bytes % piece != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!take_memory(static_cast<std::int64_t>(bytes))) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard lock(known().mutex);
  *made = ++known().latest;
  known().made[*made] = {.bytes = bytes};
  return CUDA_SUCCESS;
}

/// Frees memory that is neither mapped nor held by a handle.
void end_unused(Known& all) {
  std::erase_if(all.made, [](const auto& each) {
    const Made& made = each.second;
    return made.released && made.mapped_at == 0 && take_memory(-static_cast<std::int64_t>(made.bytes));
  });
}

CUresult release(CUmemGenericAllocationHandle made) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().made.find(made);
  if (found == known().made.end() || found->second.released) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.released = true;
  end_unused(known());
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr, unsigned long long) {
  if (bytes % piece != 0 || alignment != piece) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The page after the range is never mapped, so any access to it raises SIGSEGV.
  void* const range = mmap(nullptr, bytes + piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard lock(known().mutex);
  *address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(range));
  known().reserved[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult free_addresses(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().reserved.find(address);
  const bool is_mapped =
      std::ranges::any_of(known().made, [&](const auto& each) { return each.second.mapped_at == address; });
  if (found == known().reserved.end() || found->second != bytes || is_mapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  known().reserved.erase(found);
  // The addresses are not used again, so any later access to them raises SIGSEGV.
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle made,
             unsigned long long flags) {
  const std::lock_guard lock(known().mutex);
  const auto reserved = known().reserved.find(address);
  const auto found = known().made.find(made);
  if (reserved == known().reserved.end() || reserved->second != bytes || found == known().made.end() ||
      found->second.bytes != bytes || offset != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.mapped_at = address;
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(known().mutex);
  for (auto& [handle, made] : known().made) {
    if (made.mapped_at == address && made.bytes == bytes) {
      unmap_memory(memory_at(address));
      mmap(memory_at(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      made.mapped_at = 0;
      end_unused(known());
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  const std::lock_guard lock(known().mutex);
  const bool is_mapped =
      std::ranges::any_of(known().made, [&](const auto& each) { return each.second.mapped_at == address; });
  if (!is_mapped || count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  map_memory(memory_at(address), bytes);
  return CUDA_SUCCESS;
}

}  // namespace

void* virtual_memory_function(std::string_view name) {
  static const std::map<std::string_view, void*> functions = {
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRelease", reinterpret_cast<void*>(&release)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&free_addresses)},
      {"cuMemMap", reinterpret_cast<void*>(&map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&set_access)}};
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace shardrun::test::fake_cuda
