# Installs everything into a new prefix, builds examples/plugins against it there as a third party would, runs a job over
# what came out, and checks it.
#
# cmake -D build=… -D source=… -D work=… -D generator=… -D cxx=… -D libdir=… -D bindir=… -P examples.cmake

cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/execute.cmake")

file(REMOVE_RECURSE "${work}")
foreach(component IN ITEMS shardrun_sdk shardrun_plugins shardrun)
  run("${CMAKE_COMMAND}" --install "${build}" --component "${component}" --prefix "${work}/prefix")
endforeach()
run("${CMAKE_COMMAND}" -S "${source}" -B "${work}/build" -G "${generator}" "-DCMAKE_CXX_COMPILER=${cxx}"
  "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Wno-missing-field-initializers -Werror"
  "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_INSTALL_PREFIX=${work}/prefix" "-DCMAKE_INSTALL_LIBDIR=${libdir}")
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${CMAKE_COMMAND}" --install "${work}/build")

set(shardrun "${work}/prefix/${bindir}/shardrun")
set(installed "${work}/prefix/${libdir}/shardrun/v1")
run("${shardrun}" verify "${source}/grid.ini")
run("${shardrun}" plugins check "${installed}/shardrun_strategy_grid.so")
run("${shardrun}" plugins check "${installed}/shardrun_transport_tcp.so")
# The other one is tcp underneath: what it adds, and what the host makes for it, is enough.
run("${shardrun}" plugins check "${installed}/shardrun_transport_timed.so"
  --case all_ --case barrier --case polled --case abort)
