#include "transports/nccl/device.h"

#include <shardrun/sdk/transport/op.hpp>

#include <array>

namespace shardrun::nccl_transport {

int count_devices(const Cuda& cuda) {
  const CUresult started = cuda.init(0);
  int count = 0;
  if (started != CUDA_SUCCESS && started != CUDA_ERROR_NO_DEVICE) {
    check(cuda, started, "the NVIDIA driver does not start (nvidia-smi tells more)");
  }
  if (started == CUDA_SUCCESS) {
    check(cuda, cuda.device_count(&count), "counting CUDA devices");
  }
  if (count == 0) {
    throw sdk::TransportError(SR_INVALID,
                              "this machine has no CUDA device that this process may use: CUDA_VISIBLE_DEVICES may "
                              "hide them; choose a transport for host memory where there is none");
  }
  return count;
}

Device::Device(const Cuda& cuda, std::optional<int> chosen, int local_rank)
    : cuda_(cuda), ordinal_(chosen.value_or(local_rank)) {
  const int count = count_devices(cuda);
  if (!chosen && count == 1) {
    ordinal_ = 0;  // the launcher may make only its own device visible to each rank
  }
  if (ordinal_ >= count) {
    throw sdk::TransportError(SR_INVALID, "it needs CUDA device " + std::to_string(ordinal_) +
                                              ", and this process may use " + std::to_string(count) +
                                              " of this machine: start one rank for each device, or set device in "
                                              "[transport.nccl] to the one that each rank is to use of those it may");
  }
  check(cuda, cuda.device_get(&handle_, ordinal_), "opening CUDA device " + std::to_string(ordinal_));
  check(cuda, cuda.context_retain(&context_, handle_), "opening CUDA device " + std::to_string(ordinal_));
}

Device::~Device() { (void)cuda_.context_release(handle_); }

Device::Use::Use(const Device& device) : device_(device) {
  check(device.cuda_, device.cuda_.context_push(device.context_),
        "using CUDA device " + std::to_string(device.ordinal_));
}

Device::Use::~Use() {
  CUcontext context = nullptr;
  (void)device_.cuda_.context_pop(&context);
}

std::string Device::bus_id() const {
  std::array<char, 32> text = {};
  check(cuda_, cuda_.bus_id(text.data(), static_cast<int>(text.size()), handle_),
        "asking where CUDA device " + std::to_string(ordinal_) + " is");
  return text.data();
}

std::unique_ptr<Owned<CUstream>> make_stream(const Cuda& cuda) {
  int least = 0;
  int greatest = 0;
  check(cuda, cuda.priority_range(&least, &greatest), "asking for the priorities of streams");
  CUstream stream = nullptr;
  check(cuda, cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, greatest), "making a stream");
  return std::make_unique<Owned<CUstream>>(stream, cuda.stream_destroy);
}

std::unique_ptr<Owned<CUevent>> make_event(const Cuda& cuda) {
  CUevent event = nullptr;
  check(cuda, cuda.event_create(&event, CU_EVENT_DISABLE_TIMING), "making an event");
  return std::make_unique<Owned<CUevent>>(event, cuda.event_destroy);
}

std::unique_ptr<Owned<CUdeviceptr>> make_memory(const Cuda& cuda, std::size_t bytes) {
  CUdeviceptr memory = 0;
  check(cuda, cuda.allocate(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes on the device");
  return std::make_unique<Owned<CUdeviceptr>>(memory, cuda.free);
}

}  // namespace shardrun::nccl_transport
