# A SLURM of two nodes, n1 and n2, each in a network namespace of its own; run by `unshare --mount --net --uts --pid --fork
# --kill-child`, so that killing this script ends everything. $1: the unpacked packages; $2: a folder of this SLURM; the
# others: folders in /root that its users must be able to read.
set -e
debs=$1 folder=$2
shift 2
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/hosts" /etc/hosts
mount -t tmpfs -o mode=755 tmpfs /run
cp "$folder/slurm.conf" "$folder/cgroup.conf" /run
cp -a "$debs" /run/debs && debs=/run/debs             # the cache may be in /root too
for place; do mkdir -p "/run/readable$place" && mount --bind "$place" "/run/readable$place"; done
if [ $# -gt 0 ]; then mount -t tmpfs -o mode=755 tmpfs /root; fi
for place; do mkdir -p "$place" && mount --bind "/run/readable$place" "$place"; done
mount -t tmpfs -o mode=1777 tmpfs /mnt                # the disk that the nodes share
mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer
export PATH="$debs/usr/bin:$debs/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
lib="$debs/usr/lib/x86_64-linux-gnu"
export LD_LIBRARY_PATH="$lib:$lib/slurm-wlm" SLURM_CONF=/run/slurm.conf
mkdir -p /run/munge /run/slurm /run/spool/n1 /run/spool/n2 /run/state
head -c 1024 /dev/urandom > /run/munge/key && chmod 400 /run/munge/key
munged --key-file=/run/munge/key --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/pid --seed-file=/run/munge/seed \
    --log-file=/run/munge/log
ip link set lo up
unshare --net --uts sh -c 'hostname n2; touch /run/n2; exec sleep infinity' &
second=$!
until [ -e /run/n2 ]; do sleep 0.01; done
ip link add v1 type veth peer name v2 netns $second
ip address add 10.99.0.1/24 dev v1 && ip link set v1 up
nsenter --net=/proc/$second/ns/net sh -c 'ip link set lo up; ip address add 10.99.0.2/24 dev v2; ip link set v2 up'
hostname n1
slurmctld-wlm -c
slurmd-wlm -N n1 -d "$debs/usr/sbin/slurmstepd-wlm"
nsenter --net=/proc/$second/ns/net --uts=/proc/$second/ns/uts slurmd-wlm -N n2 -d "$debs/usr/sbin/slurmstepd-wlm"
until sinfo -h -o %T 2>/dev/null | grep -qx idle; do sleep 0.1; done
echo ready
exec sleep infinity
