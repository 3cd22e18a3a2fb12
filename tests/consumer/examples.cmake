# Installs everything into a new prefix, builds examples/plugins, examples/programs and examples/engines against it there
# as a third party would, runs jobs over what came out, and checks it.
#
# all: all of them, optimised, as plugins are by default, and with all checks. Otherwise of programs and engines only those
# that are run below (the integration tests compile the others), not optimised, which takes a fifth of the time.
#
# cmake -D all=… -D build=… -D source=… -D programs=… -D work=… -D generator=… -D c=… -D cxx=… -D libdir=… -D bindir=… -P examples.cmake

cmake_minimum_required(VERSION 3.25)

include("${CMAKE_CURRENT_LIST_DIR}/execute.cmake")

set(flags "")
if(NOT all)
  set(flags -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG= -DCMAKE_CXX_FLAGS_DEBUG=)
endif()
set(shardrun "${work}/prefix/${bindir}/shardrun")
set(installed "${work}/prefix/${libdir}/shardrun/v1")
set(some_programs model_big_sin model_life model_relu_network)
set(some_engines engine_tensor_parallel)

file(REMOVE_RECURSE "${work}")
foreach(component IN ITEMS shardrun_sdk shardrun_plugins shardrun)
  run("${CMAKE_COMMAND}" --install "${build}" --component "${component}" --prefix "${work}/prefix")
endforeach()
foreach(folder IN ITEMS "${source}" "${programs}" "${source}/../engines")
  cmake_path(GET folder FILENAME name)
  run("${CMAKE_COMMAND}" -S "${folder}" -B "${work}/${name}" -G "${generator}" "-DCMAKE_C_COMPILER=${c}" "-DCMAKE_CXX_COMPILER=${cxx}"
    "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Werror"
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wconversion -Wno-restrict -Werror" ${flags}
    "-DCMAKE_PREFIX_PATH=${work}/prefix" "-DCMAKE_INSTALL_PREFIX=${work}/prefix" "-DCMAKE_INSTALL_LIBDIR=${libdir}")
  set(some "${some_${name}}")
  if(all OR some STREQUAL "")
    run("${CMAKE_COMMAND}" --build "${work}/${name}" --parallel)
    run("${CMAKE_COMMAND}" --install "${work}/${name}")
  else()
    list(TRANSFORM some PREPEND shardrun_)
    run("${CMAKE_COMMAND}" --build "${work}/${name}" --parallel --target ${some})
    list(TRANSFORM some PREPEND "${work}/${name}/lib/shardrun/v1/")
    list(TRANSFORM some APPEND .so)
    file(COPY ${some} DESTINATION "${installed}")
  endif()
endforeach()

# Checks that each rank of the run in `folder` has sent and touched what the plan says.
function(require_as_planned job folder)
  execute_process(COMMAND "${shardrun}" plan "${job}" --json OUTPUT_VARIABLE plan COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${folder}/summary.json" summary)
  string(JSON classes LENGTH "${plan}" ranks)
  math(EXPR last_class "${classes} - 1")
  set(compared 0)
  foreach(class RANGE ${last_class})
    string(JSON planned GET "${plan}" ranks ${class} sent_bytes)
    string(JSON planned_peak GET "${plan}" ranks ${class} bytes peak)
    string(JSON members LENGTH "${plan}" ranks ${class} members)
    math(EXPR last_member "${members} - 1")
    foreach(member RANGE ${last_member})
      string(JSON rank GET "${plan}" ranks ${class} members ${member})
      string(JSON sent GET "${summary}" ranks ${rank} sent_bytes)
      string(JSON same EQUAL "${sent}" "${planned}")
      string(JSON peak GET "${summary}" ranks ${rank} peak_bytes)
      if(NOT same OR NOT peak EQUAL planned_peak)
        message(FATAL_ERROR "rank ${rank} sent ${sent}, planned ${planned}; touched ${peak}, planned ${planned_peak}")
      endif()
      math(EXPR compared "${compared} + 1")
    endforeach()
  endforeach()
  string(JSON ranks LENGTH "${summary}" ranks)
  if(NOT compared EQUAL ranks)
    message(FATAL_ERROR "the plan has ${compared} ranks, the run ${ranks}")
  endif()
endfunction()

run("${shardrun}" verify "${source}/grid.ini")
run("${shardrun}" plugins check "${installed}/shardrun_strategy_grid.so")

# Models with ops of their own, in C++ and in C, under every way of splitting them.
foreach(model IN ITEMS nearest swish)
  run("${shardrun}" plugins check "${installed}/shardrun_model_${model}.so")
  foreach(strategy IN ITEMS dp tp zero3 pp)
    run("${shardrun}" verify "${source}/nearest.ini" --set "model.name=${model}" --set "job.strategy=${strategy}")
  endforeach()
  run("${shardrun}" verify "${source}/nearest.ini" --set "model.name=${model}" --set train.precision=mixed)
  run("${shardrun}" run "${source}/nearest.ini" --set "model.name=${model}" --set "job.output=${work}/${model}")
endforeach()
require_as_planned("${source}/nearest.ini" "${work}/nearest")

# Programs written as for one device. Checking those with many layers takes long, and other tests run all of them, too.
set(checked big_sin life relu_network)
set(verified big_sin life)
set(strategies tp pp)
set(cases --case all_ --case send --case death --case abort)
if(all)
  set(checked big_sin diffusion heat102 life lms logistic neox relu_network spring wave)
  set(verified big_sin diffusion heat102 life neox spring wave)
  set(strategies dp tp zero3 pp)
  set(cases "")
endif()
foreach(model IN LISTS checked)
  run("${shardrun}" plugins check "${installed}/shardrun_model_${model}.so")
endforeach()
foreach(program IN LISTS verified)
  run("${shardrun}" verify "${programs}/${program}.ini")
endforeach()
foreach(strategy IN LISTS strategies)
  run("${shardrun}" verify "${programs}/../llama.ini" --set "job.strategy=${strategy}" --set "data.text=${source}/tcp_link.h")
endforeach()

# An engine in C and one in C++, which both equal a model. Their data are arrays of bytes, made of a file's text:
# samples of six values, and labels.
foreach(name IN ITEMS x y)
  set(width 1)
  set(shape "(64,)")
  if(name STREQUAL x)
    set(width 6)
    set(shape "(64, 6)")
  endif()
  run(sh -c "( printf '\\223NUMPY\\001\\000\\166\\000%-117s\\n' \"{'descr': '|u1', 'fortran_order': False, 'shape': ${shape}, }\" && head -c $((64 * ${width})) '${source}/tcp_link.h' ) > '${work}/${name}.npy'")
endforeach()
foreach(engine IN ITEMS by_hand tensor_parallel)
  run("${shardrun}" plugins check "${installed}/shardrun_engine_${engine}.so")
  run("${shardrun}" verify "${source}/../engines/train.ini" --set "job.engine=${engine}" --set "plugins.path=${installed}"
    --set "data.arrays=${work}/x.npy,${work}/y.npy" --set train.loss=cross_entropy --set model.loss=cross_entropy)
endforeach()

# Replicas that meet every few steps. They meet in the last step, and the run reports the bytes of that step.
run("${shardrun}" plugins check "${installed}/shardrun_strategy_local_sgd.so")
run("${shardrun}" run "${source}/local_sgd.ini" --set "job.output=${work}/local_sgd")
require_as_planned("${source}/local_sgd.ini" "${work}/local_sgd")
execute_process(COMMAND "${shardrun}" verify "${source}/local_sgd.ini" RESULT_VARIABLE result ERROR_VARIABLE error)
if(NOT result EQUAL 2 OR NOT error MATCHES "is not one model")
  message(FATAL_ERROR "verify of replicas ended with ${result}: ${error}")
endif()

# With ratio 1 everything is sent, so it is an all_reduce by other means. A hundredth is not, but it is sent as planned.
run("${shardrun}" plugins check "${installed}/shardrun_strategy_topk.so")
run("${shardrun}" verify "${source}/topk.ini" --set strategy.ratio=1)
run("${shardrun}" run "${source}/topk.ini" --set "job.output=${work}/topk")
require_as_planned("${source}/topk.ini" "${work}/topk")

# A checkpoint holds what each replica has for itself: parameters, or what hooks keep. Another strategy takes it, or
# says why not.
foreach(name IN ITEMS local_sgd topk)
  run("${shardrun}" run "${source}/${name}.ini" --set "job.output=${work}/${name}_saved" --set checkpoint.every=10)
  set(checkpoint "${work}/${name}_saved/checkpoints/step-000010")
  run("${shardrun}" run "${source}/${name}.ini" --set "job.output=${work}/${name}_later" "--resume=${checkpoint}")
  file(SHA256 "${work}/${name}_saved/weights.safetensors" saved)
  file(SHA256 "${work}/${name}_later/weights.safetensors" later)
  if(NOT saved STREQUAL later)
    message(FATAL_ERROR "${name} does not go on from its checkpoint as if it had not been interrupted")
  endif()
endforeach()
execute_process(COMMAND "${shardrun}" run "${source}/local_sgd.ini" --set job.ranks=2 --set "job.output=${work}/other"
  "--resume=${work}/local_sgd_saved/checkpoints/step-000010" RESULT_VARIABLE result ERROR_VARIABLE error)
if(NOT result EQUAL 2 OR NOT error MATCHES "for each rank of strategy local_sgd on its own")
  message(FATAL_ERROR "a run from replicas that differ ended with ${result}: ${error}")
endif()

run("${shardrun}" plugins check "${installed}/shardrun_transport_plain_tcp.so" ${cases})
# The other transport is plain_tcp underneath. It is enough to check what it adds, and what the host makes for it.
run("${shardrun}" plugins check "${installed}/shardrun_transport_timed.so"
  --case all_ --case barrier --case polled --case abort)
