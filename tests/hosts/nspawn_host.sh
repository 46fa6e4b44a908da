#!/usr/bin/env bash
# Throw-away test hosts: real systemd as PID 1 and a real sshd, each in its own
# network, mount, pid, ipc, uts and cgroup namespace (systemd-nspawn).
#
#   nspawn_host.sh base                 build the shared root file system once
#   nspawn_host.sh up NAME N            boot host NAME at 10.90.0.N (N 2..254)
#   nspawn_host.sh sh NAME CMD...       run CMD inside NAME (no ssh)
#   nspawn_host.sh ctl CMD...           run CMD where the hosts are reachable
#   nspawn_host.sh cut NAME|heal NAME   take NAME's link down / up again
#   nspawn_host.sh kill NAME            power cut: SIGKILL, keep its disk
#   nspawn_host.sh boot NAME            boot it again after a kill
#   nspawn_host.sh down NAME            stop NAME and drop its disk
#   nspawn_host.sh inventory            a YAML inventory of the running hosts
#   nspawn_host.sh clean                down every host, drop bridge and netns
#
# Needs root, and Debian's mmdebstrap, systemd-container, iproute2 and
# openssh-client.  All addresses live on a bridge inside the network namespace
# $NSPAWN_NET, so nothing is added to the machine's own network.
set -euo pipefail

dir=${NSPAWN_DIR:-/tmp/nspawn-hosts}
net=${NSPAWN_NET:-nspawn-ctl}
# Hosts of one run lie in a folder of their own, so that runs beside each other share only the base system.
run=$dir/${NSPAWN_RUN:-hosts}
suite=${NSPAWN_SUITE:-bookworm}
packages=systemd,systemd-sysv,dbus,openssh-server,python3,iproute2,procps,libgomp1
base=$dir/base-$suite
key=$dir/id_ed25519
controllers=(memory pids cpu cpuacct)

die() { echo "nspawn_host: $*" >&2; exit 1; }

# --- the shared root file system ------------------------------------------

build_base() (
  mkdir -p "$dir"
  exec 9> "$dir/.lock"
  flock 9
  [[ -e $base/.ready ]] && return
  rm -rf "$base"
  [[ -e $key ]] || ssh-keygen -q -t ed25519 -N '' -C nspawn-hosts -f "$key"
  mmdebstrap --quiet --variant=minbase --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$base"
  local unit
  for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty@.service \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service \
    systemd-pstore.service dev-hugepages.mount; do
    ln -sf /dev/null "$base/etc/systemd/system/$unit"
  done
  ln -sf /lib/systemd/system/multi-user.target "$base/etc/systemd/system/default.target"
  install -d -m 700 "$base/root/.ssh"
  install -m 600 "$key.pub" "$base/root/.ssh/authorized_keys"
  printf '%s\n' 'UsePAM no' 'UseDNS no' 'PasswordAuthentication no' \
    'PermitRootLogin prohibit-password' 'MaxSessions 100' 'MaxStartups 100' \
    > "$base/etc/ssh/sshd_config.d/test.conf"
  : > "$base/etc/machine-id"
  touch "$base/.ready"
)

# --- cgroups: one child of our own cgroup in every hierarchy ---------------

own_cgroups() { # prints the directory of the caller's cgroup in each hierarchy
  local ctl path mount
  while IFS=: read -r _ ctl path; do
    case $ctl in
      '') mount=/sys/fs/cgroup/unified; [[ -d $mount ]] || mount=/sys/fs/cgroup ;;
      name=*) mount=/sys/fs/cgroup/${ctl#name=} ;;
      *) mount=/sys/fs/cgroup/$ctl ;;
    esac
    [[ -d $mount$path ]] && echo "$mount${path%/}"
  done < /proc/self/cgroup
}

enter_cgroups() {
  local parent child
  while read -r parent; do
    child=$parent/$net-$1
    mkdir -p "$child"
    if [[ -e $parent/cpuset.cpus && $parent == */cpuset* ]]; then
      cat "$parent/cpuset.cpus" > "$child/cpuset.cpus"
      cat "$parent/cpuset.mems" > "$child/cpuset.mems"
    fi
    echo "$BASHPID" > "$child/cgroup.procs"
  done < <(own_cgroups)
}

drop_cgroups() {
  local parent
  while read -r parent; do
    [[ -d $parent/$net-$1 ]] || continue
    find "$parent/$net-$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done < <(own_cgroups)
}

# --- network: one namespace with a bridge, one namespace per host ----------

net_up() (
  exec 9> "$dir/.lock"
  flock 9
  [[ -e /run/netns/$net ]] && return
  ip netns add "$net"
  ip -n "$net" link set lo up
  ip -n "$net" link add br0 type bridge
  ip -n "$net" addr add 10.90.0.1/24 dev br0
  ip -n "$net" link set br0 up
)

host_net_up() { # NAME N
  ip netns add "$net-$1"
  ip -n "$net" link add "v-$1" type veth peer name eth0 netns "$net-$1"
  ip -n "$net" link set "v-$1" master br0 up
  ip -n "$net-$1" link set lo up
  ip -n "$net-$1" addr add "10.90.0.$2/24" dev eth0
  ip -n "$net-$1" link set eth0 up
}

# --- one host --------------------------------------------------------------

leader() { # the host's PID 1, as this machine numbers it
  local parent children=
  parent=$(cat "$run/$1/nspawn.pid" 2>/dev/null) || die "$1 is not running"
  read -r children _ < "/proc/$parent/task/$parent/children" 2>/dev/null || true
  [[ $children ]] || die "$1 is not running"
  echo "$children"
}

inside() { # NAME CMD...
  local pid
  pid=$(leader "$1")
  shift
  nsenter -t "$pid" -m -u -i -n -p -C -r -w -- "$@"
}

boot() { # NAME: start nspawn on the host's disk and wait for systemd and sshd
  local name=$1 host=$run/$1 log=$run/$1/console.log deadline=$((SECONDS + 60))
  mountpoint -q "$host/root" || mount -t overlay "$net-$name" \
    -o "lowerdir=$base,upperdir=$host/upper,workdir=$host/work" "$host/root"
  (
    enter_cgroups "$name"
    exec setsid systemd-nspawn --quiet --boot --directory="$host/root" \
      --machine="$name" --hostname="$name" --register=no --keep-unit \
      --network-namespace-path="/run/netns/$net-$name" \
      --resolv-conf=off --timezone=off --link-journal=no --console=pipe \
      < /dev/null > "$log" 2>&1
  ) &
  echo $! > "$host/nspawn.pid"
  until inside "$name" systemctl is-system-running --quiet 2>/dev/null; do
    [[ -d /proc/$(cat "$host/nspawn.pid") ]] || { cat "$log" >&2; die "$name did not boot"; }
    if [[ $(inside "$name" systemctl is-system-running 2>/dev/null) == degraded ]]; then
      inside "$name" systemctl --failed --no-legend >&2
      break
    fi
    ((SECONDS < deadline)) || die "$name did not come up in 60 s"
    sleep 0.1
  done
  # nspawn mounts the v1 resource controllers read-only.  Writable, they give
  # MemoryMax=, TasksMax= and CPUQuota= their real effect.
  local ctl
  for ctl in "${controllers[@]}"; do
    inside "$name" mount -o remount,rw,bind "/sys/fs/cgroup/$ctl" 2>/dev/null || true
  done
  inside "$name" systemctl daemon-reexec
}

up() { # NAME N
  local host=$run/$1
  [[ -e $host ]] && die "$1 exists"
  [[ $1 =~ ^[a-z][a-z0-9-]{0,10}$ ]] || die "a host name has at most 11 letters, digits and dashes"
  build_base
  net_up
  mkdir -p "$host"/{upper,work,root}
  echo "10.90.0.$2" > "$host/address"
  mkdir -p "$host/upper/etc"
  echo "$1" > "$host/upper/etc/hostname"
  host_net_up "$1" "$2"
  boot "$1"
}

halt() { # NAME SIGNAL
  local pid_file=$run/$1/nspawn.pid pid
  [[ -e $pid_file ]] || return 0
  pid=$(cat "$pid_file")
  if [[ $2 == KILL ]]; then
    kill -KILL "$(leader "$1")" 2>/dev/null || true
  else
    kill -TERM "$pid" 2>/dev/null || true
  fi
  local n
  for n in {1..200}; do
    [[ -d /proc/$pid ]] || break
    ((n == 100)) && kill -KILL "$(leader "$1")" 2>/dev/null
    sleep 0.1
  done
  rm -f "$pid_file"
  rm -rf "/run/systemd/nspawn/propagate/$1"
  drop_cgroups "$1"
}

down() { # NAME
  halt "$1" KILL
  if mountpoint -q "$run/$1/root"; then umount "$run/$1/root"; fi
  if [[ -e /run/netns/$net-$1 ]]; then ip netns del "$net-$1"; fi
  rm -rf "${run:?}/$1"
}

hosts() { local f; for f in "$run"/*/address; do [[ -e $f ]] && basename "$(dirname "$f")"; done; return 0; }

inventory() {
  cat <<Y
---
engine_hosts:
  vars:
    ansible_user: root
    ansible_python_interpreter: /usr/bin/python3
    ansible_ssh_private_key_file: $key
    # Another run may have a host at the same address, in another namespace.
    ansible_control_path_dir: $run/ssh
    ansible_ssh_common_args: -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
  hosts:
Y
  local name
  for name in $(hosts); do
    printf '    %s:\n      ansible_host: %s\n' "$name" "$(cat "$run/$name/address")"
  done
}

clean() {
  local name
  for name in $(hosts); do down "$name" & done
  wait
  if [[ -e /run/netns/$net ]]; then ip netns del "$net"; fi
  rm -rf "${run:?}"
}

case ${1-} in
  base) build_base ;;
  up) up "$2" "$3" ;;
  boot) boot "$2" ;;
  sh) shift; inside "$@" ;;
  ctl) shift; exec nsenter --net="/run/netns/$net" -- "$@" ;;
  cut) ip -n "$net" link set "v-$2" down ;;
  heal) ip -n "$net" link set "v-$2" up ;;
  kill) halt "$2" KILL ;;
  down) down "$2" ;;
  inventory) inventory ;;
  clean) clean ;;
  *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
