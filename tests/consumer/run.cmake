# Installs the SDK alone into a new prefix, builds project/ against it there, and loads what came out: from the build
# folder, and from where it was installed and then moved to.
#
# cmake -D build=… -D source=… -D work=… -D generator=… -D c=… -D cxx=… -D libdir=… -D bindir=… -D use=… -P run.cmake

include("${CMAKE_CURRENT_LIST_DIR}/execute.cmake")

file(REMOVE_RECURSE "${work}")
run("${CMAKE_COMMAND}" --install "${build}" --component shardrun_sdk --prefix "${work}/sdk")
run("${CMAKE_COMMAND}" -S "${source}" -B "${work}/build" -G "${generator}"
  "-DCMAKE_C_COMPILER=${c}" "-DCMAKE_CXX_COMPILER=${cxx}" "-DCMAKE_PREFIX_PATH=${work}/sdk"
  "-DCMAKE_INSTALL_PREFIX=${work}/installed" "-DCMAKE_INSTALL_LIBDIR=${libdir}")
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${CMAKE_COMMAND}" --install "${work}/build")

# A program finds its plugins from where it stands itself: beside it, or in the installation that it is part of.
file(COPY "${use}" DESTINATION "${work}/build")
file(COPY "${use}" DESTINATION "${work}/installed/${bindir}")
file(RENAME "${work}/installed" "${work}/moved")
cmake_path(GET use FILENAME program)
run("${work}/build/${program}")
run("${work}/moved/${bindir}/${program}")
