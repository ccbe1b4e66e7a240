package status

import "time"

// Plan is the part of a Config that can change while an Updater runs.
type Plan struct {
	Resources Resources

	UpdateFrequency, ReportFrequency time.Duration
}

// Change has another plan taken over, and a pass made. It never blocks.
func (u *Updater) Change(plan Plan) {
	u.plans.Store(&plan)
	u.Wake()
}

// change takes the latest plan over.
func (u *Updater) change() {
	plan := u.plans.Swap(nil)
	if plan == nil {
		return
	}
	u.cfg.Resources = plan.Resources
	u.cfg.UpdateFrequency, u.cfg.ReportFrequency = plan.UpdateFrequency, plan.ReportFrequency
	u.report.period = plan.ReportFrequency
	u.metrics.period.Set(plan.ReportFrequency.Seconds())
	u.idle = idle{} // the latest pass knew another plan
}
