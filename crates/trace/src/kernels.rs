//! Classifies device kernels by one table with the names of the communication kernels of all libraries.
//!
//! A kernel in the table is communication. Its kind is the first word of [`KINDS`] that its name contains, or unknown.
//! All other kernels are compute.

use crate::{CollectiveType, NodeType};

/// Kind of a transfer.
pub(crate) type Transferred = (NodeType, Option<CollectiveType>);

/// A communication kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moving {
    /// Kind of the transfer, if the kernel's name contains it.
    pub kind: Option<Transferred>,
    /// Whether a backend of c10d launches the kernel, so that the backend's records describe it. Other libraries run
    /// independently of c10d, so a record around one of their kernels describes another transfer.
    pub is_of_backend: bool,
}

/// The kernels of one library.
struct Row {
    /// Prefixes of the kernel's symbol without `void` and namespaces, in lower case.
    starts: &'static [&'static str],
    /// Substrings of the name without its arguments.
    holds: &'static [&'static str],
    is_of_backend: bool,
}

/// The communication kernels of each library. The comment above each row gives the sources of the names: repositories
/// and files.
const LIBRARIES: &[Row] = &[
    // NVIDIA/nccl src/device/generate.py (ncclDevKernel_, from 2.19; ncclSymDevKernel_ and ncclSymkDevKernel_ of
    // symmetric memory, from 2.27), src/collectives/device/common.h of v2.18 (ncclKernel_) and of v2.7
    // (ncclAllReduceRingLLKernel_sum_f32); ROCm/rccl src/device/generate.py (ncclDevKernel_Generic_4, mscclKernel_ of
    // src/device/msccl_kernel_impl.h).
    Row { starts: &["nccl", "rccl", "msccl"], holds: &["rccl::"], is_of_backend: true },
    // Ascend's HCCL names the tasks of a collective hcom_allReduce__123_0_1 (Ascend/pytorch, torch_npu/profiler).
    // Habana's names are those of tasks on its network cards (HabanaAI/hccl).
    Row { starts: &["hcom_", "hccl", "nic_"], holds: &["hccl"], is_of_backend: true },
    // uxlfoundation/oneCCL src/coll/algorithms/utils/sycl_coll_base.hpp and src/sched/entry/ze.
    Row { starts: &["oneccl", "ccl_", "xccl"], holds: &["oneccl", "ccl::v1::", "sycl_coll"], is_of_backend: true },
    // Cambricon's CNCL and Moore Threads' MCCL, as named in torch_mlu and torch_musa.
    Row { starts: &["cncl", "mccl"], holds: &[], is_of_backend: true },
    // deepseek-ai/DeepEP csrc/kernels/{intranode,internode,internode_ll,runtime}.cu; its layout.cu counts tokens.
    Row {
        starts: &[],
        holds: &["deep_ep::intranode::", "deep_ep::internode::", "deep_ep::internode_ll::", "deep_ep::hybrid_ep"],
        is_of_backend: false,
    },
    // ROCm/mori src/ops/dispatch_combine/{intranode,internode}.hpp; perplexityai/pplx-kernels src/all_to_all.
    Row { starts: &["epdispatch", "epcombine"], holds: &["pplx::", "mori::"], is_of_backend: false },
    // NVIDIA/nvshmem src/device; pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu;
    // ROCm/rocSHMEM.
    Row {
        starts: &["nvshmem", "rocshmem", "ishmem", "barrier_on_stream_kernel", "alltoallv", "exchangesplitandoffset"],
        holds: &["nvshmemi_", "nvshmemx_", "rocshmem"],
        is_of_backend: false,
    },
    // pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu and intra_node_comm.cu.
    Row {
        starts: &["multimem_", "one_shot_", "two_shot_", "oneshot", "twoshot", "hybridcubemesh"],
        holds: &["put_signal_kernel", "wait_signal_kernel", "symm_mem"],
        is_of_backend: false,
    },
    // vllm-project/vllm csrc/custom_all_reduce.cuh (cross_device_reduce_1stage) and csrc/quickreduce/quick_reduce.h
    // (allreduce_prototype_twoshot); ROCm/aiter csrc/include/custom_all_reduce.cuh; sgl-project/sglang sgl-kernel.
    Row {
        starts: &[
            "cross_device_reduce",
            "allreduce_prototype",
            "reduce_scatter_cross_device",
            "allgather_cross_device",
        ],
        holds: &["quickreduce::", "cross_device_"],
        is_of_backend: false,
    },
    // NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels and flashinfer's trtllm_allreduce.cuh,
    // trtllm_mnnvl_allreduce.cuh and trtllm_alltoall.cuh.
    Row {
        starts: &["allreduce_fusion_kernel", "moealltoall", "moea2a"],
        holds: &["lamport_style", "trtllm_mnnvl_allreduce", "mnnvl_"],
        is_of_backend: false,
    },
    // NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu.
    Row { starts: &["userbuffers_", "kuserbuffers_"], holds: &[], is_of_backend: false },
    // microsoft/mscclpp src and apps/nccl (allreduce_nvls); ByteDance-Seed/Triton-distributed names its kernels after
    // their operation.
    Row { starts: &["mscclpp"], holds: &["mscclpp::"], is_of_backend: false },
    // CUPTI's copies between two devices (CUPTI_ACTIVITY_MEMCPY_KIND_PTOP), as pytorch/kineto
    // libkineto/src/CuptiActivity.cpp names them.
    Row { starts: &["memcpy ptop", "memcpypeer"], holds: &[], is_of_backend: false },
];

/// Kinds of transfers by words in the names of kernels and of backends' records. A word that contains another one comes
/// first.
const KINDS: &[(&str, Transferred)] = &[
    ("allreduce", (NodeType::Coll, Some(CollectiveType::AllReduce))),
    ("reducescatter", (NodeType::Coll, Some(CollectiveType::ReduceScatter))),
    ("allgather", (NodeType::Coll, Some(CollectiveType::AllGather))),
    ("alltoall", (NodeType::Coll, Some(CollectiveType::AllToAll))),
    ("broadcast", (NodeType::Coll, Some(CollectiveType::Broadcast))),
    ("barrier", (NodeType::Coll, Some(CollectiveType::Barrier))),
];

/// The kernel for sends and receives. NCCL also uses it for operations without a kernel of their own, so only the call
/// shows the kind.
const SENDS: &str = "sendrecv";

/// Words in the names of kernels for expert parallelism. These kernels dispatch tokens to experts and combine the
/// results, which is an all-to-all.
const EXPERTS: &[&str] = &["dispatch", "combine", "a2a"];

/// Kinds whose words also occur within other words, so that the kernel's name must begin with them.
const FIRST: &[(&str, Transferred)] = &[
    ("reduce", (NodeType::Coll, Some(CollectiveType::Reduce))),
    ("gather", (NodeType::Coll, Some(CollectiveType::Gather))),
    ("scatter", (NodeType::Coll, Some(CollectiveType::Scatter))),
    ("send", (NodeType::Send, None)),
    ("recv", (NodeType::Recv, None)),
    ("receive", (NodeType::Recv, None)),
];

/// Records of ProcessGroupNCCL that transfer nothing. They concern a group or its streams.
pub(crate) const NO_TRANSFER: &[&str] = &["wait", "init", "startCoalescing", "endCoalescing"];

/// Classifies a kernel by its name. Returns `None` for compute.
pub(crate) fn moving(name: &str) -> Option<Moving> {
    // Inductor names a compute kernel after its operators, which may include a collective:
    // triton_poi_fused_all_reduce_wait_tensor_1.
    if name.starts_with("triton_") && name.contains("_fused_") {
        return None;
    }
    let name = name.strip_prefix("void ").unwrap_or(name);
    // Removes arguments and template parameters. Namespaces in brackets, such as (anonymous namespace), are removed
    // first.
    let name = name.strip_prefix("(anonymous namespace)::").or(name.strip_prefix("<unnamed>::")).unwrap_or(name);
    let until_arguments = if name.starts_with("Memcpy") { name } else { name.split(['(', '<']).next().unwrap_or(name) };
    let whole = until_arguments.to_ascii_lowercase();
    let symbol = whole.rsplit("::").next().unwrap_or(&whole);
    let is_of = |row: &&Row| {
        row.starts.iter().any(|start| symbol.starts_with(start)) || row.holds.iter().any(|part| whole.contains(part))
    };
    let library = LIBRARIES.iter().find(is_of);
    let plain: String = symbol.chars().filter(|&one| one != '_').collect();
    // Libraries outside the table also name their kernels after the collective. `broadcast` does not count, because
    // tensor operators also broadcast.
    let is_named =
        || ["allreduce", "reducescatter", "allgather", "alltoall", SENDS].iter().any(|one| plain.contains(one));
    if library.is_none() && !is_named() {
        return None;
    }
    let is_of_experts = EXPERTS.iter().any(|one| plain.contains(one)) && library.is_some_and(|row| !row.is_of_backend);
    let after_prefix =
        || ["nccldevkernel", "ncclkernel", "nccl", "hcom"].iter().find_map(|one| plain.strip_prefix(one));
    let kind = if plain.contains(SENDS) {
        None
    } else if is_of_experts {
        Some((NodeType::Coll, Some(CollectiveType::AllToAll)))
    } else {
        within(&plain).or_else(|| first(after_prefix()?))
    };
    Some(Moving { kind, is_of_backend: library.is_some_and(|row| row.is_of_backend) })
}

/// Returns the kind of a transfer by the name of its operation in PyTorch or in a backend, such as `allreduce_`,
/// `_reduce_scatter_base`, `all_to_allv` or `symm_mem::multimem_all_reduce`.
pub(crate) fn named(name: &str) -> Option<Transferred> {
    let plain: String = name.chars().filter(|&one| one != '_').collect::<String>().to_ascii_lowercase();
    let found = KINDS.iter().chain(FIRST).find(|(word, _)| plain.starts_with(word)).map(|&(_, kind)| kind);
    found.or_else(|| moving(name)?.kind)
}

fn within(plain: &str) -> Option<Transferred> {
    KINDS.iter().find(|(word, _)| plain.contains(word)).map(|&(_, kind)| kind)
}

fn first(plain: &str) -> Option<Transferred> {
    FIRST.iter().find(|(word, _)| plain.starts_with(word)).map(|&(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::{moving, named};
    use crate::{CollectiveType, NodeType};

    #[test]
    fn kernels_of_every_library_are_communication_of_their_kind() {
        use CollectiveType::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter};
        let kinds = [
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Some(AllReduce)),
            ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", Some(Reduce)),
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Some(AllReduce)),
            ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", Some(AllReduce)),
            ("ncclReduceScatterRingLLKernel_sum_f16(ncclColl)", Some(ReduceScatter)),
            ("ncclReduceRingLLKernel_sum_f32(ncclColl)", Some(Reduce)),
            ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", Some(Broadcast)),
            ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", Some(AllGather)),
            ("hcom_allReduce__123_0_1", Some(AllReduce)),
            ("NIC_all_reduce", Some(AllReduce)),
            ("void deep_ep::internode::dispatch<false, 8, false, 8>(int4*)", Some(AllToAll)),
            ("void deep_ep::internode_ll::combine<true, 7168, 8>(void*)", Some(AllToAll)),
            (
                "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
                Some(AllReduce),
            ),
            ("two_shot_all_reduce_kernel_inplace", Some(AllReduce)),
            ("void vllm::allreduce_prototype_twoshot<x>(y)", Some(AllReduce)),
            ("my_library::fast_all_to_all<float>(float*)", Some(AllToAll)),
        ];
        for (name, kind) in kinds {
            let found = moving(name).unwrap_or_else(|| panic!("{name} is no communication"));
            assert_eq!(found.kind.and_then(|kind| kind.1), kind, "{name}");
        }
        let unknown = [
            "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_Generic_4(x)",
            "ncclSendRecvKernel_copy_i8(ncclColl)",
            "ncclDevKernel_SendRecv(x)",
            "oneccl_reduce_base<float, 2, 16, 1, 1, 2>",
            "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
            "void aiter::cross_device_reduce_2stage_naive<bf16, 8>(x)",
            "void deep_ep::intranode::notify_something<8>(int)",
            "nvshmemi_proxy_quiet_kernel",
            "userbuffers_fp16_sum_inplace_gpu_rr_ag",
            "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
            "mscclKernel_Sum_half_Simple_false",
            "Memcpy PtoP (Device -> Device)",
        ];
        for name in unknown {
            assert_eq!(moving(name).map(|found| found.kind), Some(None), "{name}");
        }
    }

    #[test]
    fn kernels_that_compute_are_no_communication() {
        let names = [
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
            "void at::native::_scatter_gather_elementwise_kernel<128, 8, x>(y)",
            "void at::native::vectorized_elementwise_kernel<4, deep_ep::internode::x>(y)",
            "triton_poi_fused__to_copy_all_reduce_wait_tensor_2",
            "deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
            "sgemm_fwd",
            "void at::native::broadcast_kernel<float>(x)",
            "Memcpy DtoD (Device -> Device)",
            "Memset (Device)",
            "void splitKreduce_kernel<32, 16, int>(x)",
            "_gather_rows_kernel",
        ];
        for name in names {
            assert_eq!(moving(name), None, "{name}");
        }
    }

    #[test]
    fn records_are_named_by_how_they_begin() {
        let all_gather = Some((NodeType::Coll, Some(CollectiveType::AllGather)));
        assert_eq!(named("_allgather_base_"), all_gather);
        assert_eq!(named("all_gather_into_tensor_coalesced"), all_gather);
        assert_eq!(named("_reduce_oop"), Some((NodeType::Coll, Some(CollectiveType::Reduce))));
        assert_eq!(named("symm_mem::multimem_all_gather_out"), all_gather);
        assert_eq!(named("recvAnySource"), Some((NodeType::Recv, None)));
        assert_eq!((named("coalesced"), named("wait"), named("init")), (None, None, None));
    }
}
