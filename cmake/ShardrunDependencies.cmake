# The project's dependencies. All come from the distribution; nothing is downloaded.

option(SHARDRUN_ONEDNN "Multiply matrices with oneDNN where it is found; otherwise with Eigen" ON)

find_package(Boost 1.81 REQUIRED COMPONENTS filesystem program_options json)
if(SHARDRUN_TESTS)
  find_package(Boost 1.81 REQUIRED COMPONENTS context)  # the emulator of CUDA kernels
endif()
find_package(fmt REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto SSL)
if(SHARDRUN_ONEDNN)
  find_package(dnnl)
endif()
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(PNG REQUIRED)
find_package(GIF REQUIRED)
find_package(Threads REQUIRED)
find_path(SHARDRUN_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # its functions are inline
