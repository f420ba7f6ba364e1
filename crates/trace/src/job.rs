//! The job to which a trace file belongs: its ranks, process groups and backends.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Backends of c10d whose calls only enqueue a transfer on a device, so that a call does not show when bytes move.
pub(super) const ENQUEUE: &[&str] = &["nccl", "rccl", "xccl", "hccl", "cncl", "mccl"];

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Distributed {
    backend: String,
    #[serde(deserialize_with = "number")]
    pub(super) rank: Option<u32>,
    #[serde(deserialize_with = "number")]
    pub(super) world_size: Option<u32>,
    pub(super) pg_config: Vec<ProcessGroup>,
    /// Index in `pg_config` of the group with each name. If two groups have one name, it is the index of the first.
    #[serde(skip)]
    place: BTreeMap<String, usize>,
}

impl Distributed {
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let mut read: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        crate::plausible(read.rank, read.world_size, &[]).map_err(|error| error.to_string())?;
        let groups = std::mem::take(&mut read.pg_config);
        groups.into_iter().try_for_each(|group| read.add(group))?;
        Ok(read)
    }

    /// Adds a group. If several groups have one name, lookups return the first.
    pub(super) fn add(&mut self, group: ProcessGroup) -> Result<(), String> {
        crate::plausible(None, None, &group.ranks).map_err(|error| error.to_string())?;
        self.place.entry(group.pg_name.clone()).or_insert(self.pg_config.len());
        self.pg_config.push(group);
        Ok(())
    }

    /// Returns the purposes of groups, by the name of the group.
    pub(super) fn described(&self) -> BTreeMap<String, String> {
        let said = self.pg_config.iter().filter(|group| !matches!(&*group.pg_desc, "" | "undefined"));
        said.map(|group| (group.pg_name.clone(), group.pg_desc.clone())).collect()
    }

    /// Returns the group with this name. If the name is empty, returns the job's only group, if there is only one.
    pub(super) fn group(&self, name: &str) -> Option<&ProcessGroup> {
        match self.pg_config.as_slice() {
            [group] if name.is_empty() => Some(group),
            groups => self.place.get(name).map(|&place| &groups[place]),
        }
    }

    /// Returns the number of ranks of the group with this name, if the file contains it.
    pub(super) fn group_size(&self, name: &str) -> Option<u64> {
        let of_job = self.world_size.filter(|&size| size == 1).map(u64::from);
        let group = self.group(name);
        of_job.or(group?.pg_size).or(Some(group?.ranks.len() as u64).filter(|&size| size > 0))
    }

    /// Returns whether the backend of a group enqueues transfers on a device. Returns `None` if the file does not name
    /// the backend.
    pub(super) fn enqueues(&self, name: &str) -> Option<bool> {
        let of_group = self.group(name).map(|group| group.backend_config.as_str()).filter(|text| !text.is_empty());
        let text = of_group.or(Some(self.backend.as_str()).filter(|text| !text.is_empty()))?;
        Some(ENQUEUE.iter().any(|one| text.contains(one)))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ProcessGroup {
    pub(super) pg_name: String,
    pub(super) pg_desc: String,
    backend_config: String,
    /// Address of the backend in the process. Records of PyTorch 2.3 and earlier refer to the group by this address.
    pub(super) backend_id: Option<u64>,
    /// Number of ranks. It is called `group_size` in c10d's `pg_config_info`.
    #[serde(alias = "group_size")]
    pub(super) pg_size: Option<u64>,
    pub(super) ranks: Arc<[u32]>,
}

/// Reads an integer, which some exporters write as a string.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    use serde::de::Error;
    let wrong = |shown: String| D::Error::custom(format!("{shown} is no rank and no number of ranks"));
    match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.trim().parse().map(Some).map_err(|_| wrong(format!("{text:?}"))),
        Some(other) => {
            let value = other.as_u64().and_then(|value| u32::try_from(value).ok());
            value.map(Some).ok_or_else(|| wrong(other.to_string()))
        }
    }
}
