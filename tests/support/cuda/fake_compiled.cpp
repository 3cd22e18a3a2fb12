// A fake of the driver functions that the real cuDNN calls before it compiles a kernel. Kernels are loaded but cannot
// run. With it, cuDNN makes plans on a machine without a GPU.

namespace {

constexpr int not_supported = 801;

/// Returns a handle that nobody dereferences.
int give(void** handle) {
  static int object = 0;
  *handle = &object;
  return 0;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuLibraryLoadData(void** library) { return give(library); }
int cuLibraryGetKernel(void** kernel) { return give(kernel); }
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute() { return 0; }
int cuKernelGetAttribute(int* value) {
  *value = 0;
  return 0;
}

// NVRTC calls this function.
int cuGetExportTable() { return not_supported; }
int cuCtxGetCurrent() { return not_supported; }
int cuCtxGetLimit() { return not_supported; }
int cuCtxPopCurrent() { return not_supported; }
int cuCtxPushCurrent() { return not_supported; }
int cuLaunchCooperativeKernel() { return not_supported; }
int cuLaunchKernelEx() { return not_supported; }
int cuLibraryLoadFromFile() { return not_supported; }
int cuLinkAddData() { return not_supported; }
int cuLinkComplete() { return not_supported; }
int cuLinkCreate() { return not_supported; }
int cuLinkDestroy() { return not_supported; }
int cuOccupancyMaxPotentialClusterSize() { return not_supported; }
int cuStreamGetCtx() { return not_supported; }

}  // extern "C"
