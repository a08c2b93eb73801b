//! The examples for Kubernetes: enemy, a manifest that a cluster refuses, a command line that the program refuses, and a probe that never succeeds.
//!
//! There is no cluster here: its published schemas judge the manifests, and the containers' commands run on this machine, with folders of this
//! test's in the place of the volumes.
//! Guards: P49

use clients::prepare::{Venv, venv};
use harness::{DEADLINE, Scratch, free_port, http_get, keyway_binary, skip, wait_until};
use packages::{root, run, target};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Stdio};

/// The schemas, with the program that uses them, and its parser of YAML.
const VALIDATOR: Venv<'_> = Venv {
    packages: &["kubernetes-validate==1.37.0"],
    imports: "kubernetes_validate, yaml",
};

/// Validates a manifest strictly, and prints it as JSON.
const SCRIPT: &str = "
import json, sys, yaml, kubernetes_validate
for document in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(document, '1.37.0', strict=True)
    print(json.dumps(document))
";

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Runs the container as a kubelet would, with `scratch` in the place of its volumes, until its probes succeed.
fn try_out(container: &Value, volumes: &[Value]) {
    let scratch = Scratch::new();
    let port = free_port();
    let mounts = list(&container["volumeMounts"]);
    for mount in mounts {
        assert!(
            volumes.iter().any(|volume| volume["name"] == mount["name"]),
            "{mount}: there is no such volume"
        );
        fs::create_dir_all(scratch.join(text(&mount["name"]))).unwrap();
    }
    let here = |word: &Value| {
        let mut word = text(word).to_owned();
        for mount in mounts {
            let folder = scratch.join(text(&mount["name"]));
            word = word.replace(&format!("{}/", text(&mount["mountPath"])), &format!("{}/", folder.display()));
        }
        word.replace("0.0.0.0:11212", &format!("127.0.0.1:{port}"))
            .replace("127.0.0.1:11211", &format!("127.0.0.1:{}", free_port()))
    };
    let words: Vec<String> = list(&container["args"]).iter().map(here).collect();
    let mut command = Command::new(keyway_binary());
    command.args(&words).stdin(Stdio::null()).stdout(Stdio::null());
    let mut serving = Serving(command.spawn().unwrap());
    let port_name = &container["ports"][0]["name"];
    assert_eq!(container["ports"][0]["containerPort"], 11212);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let probe = &container[probe];
        wait_until("a probe that succeeds", DEADLINE, || {
            assert!(serving.0.try_wait().unwrap().is_none(), "keyway {words:?} ended");
            let succeeds = if probe["httpGet"].is_object() {
                assert_eq!(&probe["httpGet"]["port"], port_name);
                http_get(([127, 0, 0, 1], port).into(), text(&probe["httpGet"]["path"]), "*/*")
                    .is_ok_and(|answer| answer.status == 200)
            } else {
                let check: Vec<String> = list(&probe["exec"]["command"]).iter().map(here).collect();
                assert_eq!(check[0], "/usr/bin/keyway", "{probe}");
                let output = Command::new(keyway_binary()).args(&check[1..]).output().unwrap();
                assert_ne!(output.status.code(), Some(64), "{output:?}");
                output.status.success()
            };
            succeeds.then_some(())
        });
    }
}

#[test]
fn the_manifests_are_valid_and_their_containers_become_ready() {
    let python = match venv(&target(), &VALIDATOR) {
        Ok(python) => python,
        Err(why) => return skip("the examples for Kubernetes", &why),
    };
    let mut containers_tried = 0;
    for file in fs::read_dir(root().join("packaging/kubernetes")).unwrap() {
        let file = file.unwrap().path();
        let documents = run(Command::new(&python).args(["-c", SCRIPT]).arg(&file));
        for document in documents.lines() {
            let document: Value = serde_json::from_str(document).unwrap();
            let pod = &document["spec"]["template"]["spec"];
            let volumes = list(&pod["volumes"]);
            let containers = list(&pod["initContainers"]).iter().chain(list(&pod["containers"]));
            let image = format!("keyway:{}", env!("CARGO_PKG_VERSION"));
            for container in containers.filter(|container| text(&container["image"]).starts_with("keyway:")) {
                assert_eq!(text(&container["image"]), image, "{}", file.display());
                try_out(container, volumes);
                containers_tried += 1;
            }
        }
    }
    assert!(containers_tried >= 2, "{containers_tried}");
}
